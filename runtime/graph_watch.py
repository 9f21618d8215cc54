# Looking into a graph while llama.cpp computes it: its nodes, their values, and the weights of matrix products.
# This file may not know what is looked for. ggml's tensors are read as ggml.h lays them out.
"""``Watch``: a callback for LlamaContext that shows the nodes of a graph to a `Watcher`.

llama.cpp computes up to a node that the watcher wants, stops there, shows it, and goes on. Nothing is shown after an
exception: it is kept, the decode ends, and `Watch.check` raises it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from ingle.runtime.llama import lib

_NUM_DIMS, _NUM_SOURCES, _NAME_BYTES, _PARAM_BYTES = 4, 10, 64, 64  # GGML_MAX_DIMS, _SRC, _NAME, _OP_PARAMS
_NUM_OPS_ASKED = 50  # the products stand near the front of enum ggml_op
_F32: Final = 0
_I32: Final = 26


class _Tensor(ctypes.Structure):
    """struct ggml_tensor."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * _NUM_DIMS),
    ("nb", ctypes.c_size_t * _NUM_DIMS),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_uint8 * _PARAM_BYTES),
    ("flags", ctypes.c_int32),
    ("src", ctypes.c_void_p * _NUM_SOURCES),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * _NAME_BYTES),
]

_base: Any = lib.load_shared_library("ggml-base", lib._base_path)
_base.ggml_op_name.restype = ctypes.c_char_p
_base.ggml_op_name.argtypes = [ctypes.c_int]
for _function in (_base.ggml_backend_tensor_get, _base.ggml_backend_tensor_set):
    _function.restype = None
    _function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

_OPS: Final = {_base.ggml_op_name(number): number for number in range(_NUM_OPS_ASKED)}
_PRODUCTS: Final = frozenset((_OPS[b"MUL_MAT"], _OPS[b"MUL_MAT_ID"]))


class TensorRef:
    """A tensor of the graph that is being computed; good until the watcher returns."""

    __slots__ = ("_tensor", "address")

    def __init__(self, address: int) -> None:
        self.address = address
        self._tensor = _Tensor.from_address(address)

    @property
    def name(self) -> str:
        """Its name; of a copy on a GPU (``CUDA0#blk.0.attn_q.weight#0``), that of the original."""
        parts: list[str] = self._tensor.name.decode("utf-8", "replace").split("#")
        return parts[1] if len(parts) > 1 else parts[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """ggml's order, the row length first, always four numbers."""
        return tuple(self._tensor.ne)

    @property
    def type_id(self) -> int:
        """ggml's number of the type of its values."""
        return int(self._tensor.type)

    def read(self) -> npt.NDArray[Any]:
        """Its values, [..., rows, cols] in numpy's order of the four dimensions: float32, or int32 for ids. A copy,
        from wherever the tensor lies (ggml_backend_tensor_get)."""
        assert self._tensor.type in (_F32, _I32), f"{self.name} has type {self._tensor.type}"
        shape, strides = self._tensor.ne[::-1], self._tensor.nb[::-1]
        num_bytes = 4 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        raw = np.empty(num_bytes, np.uint8)
        _base.ggml_backend_tensor_get(self.address, raw.ctypes.data, 0, num_bytes)
        kind = np.float32 if self._tensor.type == _F32 else np.int32
        return np.ndarray(shape, kind, raw.data, 0, strides)

    def write(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Put `data`, bytes as its type lays them out, in their place from byte `offset` on (ggml_backend_tensor_set).
        Only for weights of a model that was loaded `plain`."""
        assert data.flags.c_contiguous
        _base.ggml_backend_tensor_set(self.address, data.ctypes.data, offset, data.nbytes)


class Node:
    """A node of the graph. Of a product: `weight` times `inputs`, for experts chosen by `ids` (MUL_MAT, MUL_MAT_ID)."""

    __slots__ = ("_node", "output")

    def __init__(self, address: int) -> None:
        self.output = TensorRef(address)
        self._node = _Tensor.from_address(address)

    @property
    def is_product(self) -> bool:
        return self._node.op in _PRODUCTS

    @property
    def weight(self) -> TensorRef:
        return TensorRef(self._node.src[0])

    @property
    def inputs(self) -> TensorRef:
        return TensorRef(self._node.src[1])

    @property
    def ids(self) -> TensorRef | None:
        return TensorRef(self._node.src[2]) if self._node.src[2] else None


class Watcher(Protocol):
    """Who looks. Both are called on the thread that decodes."""

    def wants(self, node: Node) -> bool:
        """Asked of every node before it is computed, so it must be quick."""

    def computed(self, node: Node) -> bool:
        """A wanted node has been computed, and nothing after it. Whether the rest of the graph is needed."""


class Watch:
    """The callback itself: `callback` goes to `LlamaContext(watch=…)`, which must be closed before this is dropped."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._error: BaseException | None = None
        self.callback = lib.ggml_backend_sched_eval_callback(self._call)

    def check(self) -> None:
        """Raise what the watcher raised. To be called after every decode."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _call(self, address: int, is_question: bool, _data: object) -> bool:
        if self._error is not None:
            return False
        try:
            node = Node(address)
            return self._watcher.wants(node) if is_question else self._watcher.computed(node)
        except BaseException as error:  # nothing may be raised through C; `check` raises it on the other side
            self._error = error
            return False
