# SPDX-License-Identifier: Apache-2.0
"""Lade for PyTorch: an unmodified training step inside a byte budget, with the bits of the step that you wrote."""
from ..errors import CannotCapture, DoesNotFit, Error
from .adamw import AdamW
from .limit import limit
from .saved import saved
from .train_step import digest, measure, step

__all__ = ["AdamW", "CannotCapture", "DoesNotFit", "Error", "digest", "limit", "measure", "saved", "step"]
