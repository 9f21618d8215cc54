# The face of the package. It may import models, and runtime's public face and llama.py; never a terminal.
"""Smaller models, with proof.

::

    source.Source          a GGUF opened for reading weights
    recipe.choose_types    a mix's name and a model → the type of every tensor, as llama.cpp chooses
    pipeline.quantize      source, recipe, importances, transforms, encoders → a file, streamed
    imatrix_file           llama.cpp's importance matrices
    budget.choose          types within a number of bytes, from measured errors
    ggml                   the quantizers themselves, on arrays

Errors, all with a one-line `message` and an optional one-line `hint`::

    QuantError
    ├── BadRecipe    an unknown type, a pattern that matches nothing, a budget that cannot be met
    ├── BadWeights   a weight that is NaN, infinite or too large, rows that no type divides
    └── BadImatrix   an importance matrix that is damaged, or belongs to another model
"""
