"""Tokens in, tokens out: the engine with its paged KV manager.

The public face is `ingle.runtime.engine` (Engine, EngineInfo), `.config` (EngineConfig), `.request` (Request,
SamplingParams, RequestOutput, …), `.metrics` and `.errors`. Importing this package alone loads nothing native.
"""
