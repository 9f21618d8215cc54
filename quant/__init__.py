# The face of the package. It may import models, and runtime's public face and llama.py; never a terminal.
"""Smaller models, with proof.

::

    source.Source          a GGUF opened for reading weights
    recipe.choose_types    a mix's name and a model → the type of every tensor, as llama.cpp chooses
    pipeline.quantize      source, recipe, importances, transforms, blocks → a file, streamed
    imatrix_file           llama.cpp's importance matrices
    calibrate              the text a model is calibrated on: a file's, or its own
    activations.capture    that text through the model → what arrives at each weight
    improve                scales (awq, groups, fold) and error feedback (gptq, sequential, formats)
    evaluate               perplexity, and how far one model is from another
    workshop.Workshop      all of these for one source: for every recipe the file that held-out text says is best
    sensitivity, target    what each tensor needs, and a recipe within a number of bytes (budget)
    int4, draft, verdict   choices among files that were measured
    ggml                   the quantizers themselves, on arrays

Errors, all with a one-line `message` and an optional one-line `hint`::

    QuantError
    ├── BadRecipe    an unknown type, a pattern that matches nothing, a budget that cannot be met
    ├── BadActivations  calibration met NaN or infinity
    ├── BadText      a text that nothing can be measured on: too short, or not text
    ├── DifferentVocabulary  two models that cannot be compared
    ├── BadWeights   a weight that is NaN, infinite or too large, rows that no type divides
    └── BadImatrix   an importance matrix that is damaged, or belongs to another model
"""
