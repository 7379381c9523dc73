# SPDX-License-Identifier: Apache-2.0
"""Prices of captured ops: bytes, scratch and time."""
