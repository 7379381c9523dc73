# SPDX-License-Identifier: Apache-2.0
"""Capture of a training step as one graph of ATen ops, on fake tensors."""
