# SPDX-License-Identifier: Apache-2.0
"""The run of a planned step: generated code, moves between tiers, tensors that wait there."""
