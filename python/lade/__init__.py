# SPDX-License-Identifier: Apache-2.0
"""Lade: training steps inside a byte budget. This package is the C library by ctypes; lade.torch is for PyTorch."""
from .errors import CannotCapture, DoesNotFit, Error
from .graph import Graph, Plan
from .library import version
from .size import budget_bytes, size_bytes
from .store import Store

__all__ = ["CannotCapture", "DoesNotFit", "Error", "Graph", "Plan", "Store", "budget_bytes", "size_bytes",
           "version"]
