#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory-bound kernels, compiled by nvcc for sm_90, some for sm_80, too. Each moves 16 bytes at a time, because a
compiler may split packs, and none spills registers. Attention by warpgroups: between a tile's barrier and its first
product no thread copies, so that tensor cores do not wait for the copies' addresses.

machine_code.py NVCC SOURCE_ROOT
"""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../bench'))
import sass_listing # noqa: E402

# Architectures other than sm_90 alone: these use nearly all registers that two blocks leave a thread.
ARCHS = {name: ['sm_80', 'sm_90'] for name in ('adamw', 'norm', 'residual')}
WARPGROUPS = ('attention_wgmma', 'attention_wgmma_bwd')
TILES = [('attention_mma_more', 'sm_80'), ('attention_mma_more', 'sm_120')]  # these use nearly all registers
FRONT_COPIES = ('attention_wgmma_dq_128',)  # kernels without registers for addresses behind the products
# Prefixes of functions' names, by file. Those of NARROW write sums, or less than they read.
FILES = {
    'adamw': ['adamw'], 'add': ['add'], 'cast': ['cast_bf16'], 'column_sum': ['column_sum_bf16'],
    'dropout': ['dropout_bf16'], 'embed': ['embed_fwd_bf16', 'embed_tokens_bf16'],
    'gelu': ['gelu_fwd_bf16', 'gelu_bwd_bf16', 'gelu_bwd_columns_bf16'],
    'head_loss': ['head_reduce', 'head_gradient_bf16'], 'norm': ['norm_fwd_bf16', 'norm_bwd_bf16'],
    'residual': ['residual_fwd_bf16', 'residual_bwd_bf16', 'residual_sums_bwd_bf16', 'residual_drop_fwd_bf16',
                 'residual_drop_bwd_bf16'],
    'rope': ['rope_bf16'],
    'sum_squares': ['sum_squares_f32', 'sum_squares_bf16'], 'swiglu': ['swiglu_fwd_bf16', 'swiglu_bwd_bf16']}
NARROW = ('column_sum', 'head_', 'sum_squares')


def warpgroup_faults(function, body):
    """Return the faults of a kernel of warpgroups: copies in front of a tile's products, slow divisions."""
    faults = [f'{function} divides 64-bit integers'] * bool(re.search(r'\b(div|rem)\.[su]64', body))
    tiles = [tile for tile in re.split(r'\bbar(?:rier)?\.sync', body)[1:] if 'wgmma.mma_async' in tile]
    late = any('cp.async.cg' in tile.split('wgmma.mma_async')[0] for tile in tiles)
    faults += [f'{function} has no product behind a barrier'] * (not tiles)
    return faults + [f'{function} copies in front of its products'] * (late and not function.startswith(FRONT_COPIES))


def spill_faults(resources):
    return [f'{function} spills {found.spill_bytes} bytes' for function, found in resources.items() if found.spill_bytes]


def main():
    nvcc, root = sys.argv[1:]
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        for name, arch in [(name, arch) for name in FILES for arch in ARCHS.get(name, ['sm_90'])]:
            bodies, resources, _ = sass_listing.kernel_compile(nvcc, root, name, arch, folder)
            if not resources or resources.keys() != bodies.keys():
                faults.append(f'{name}: ptxas tells of {sorted(resources)}, the PTX has {sorted(bodies)}')
            faults += spill_faults(resources)
            for function in [function for function in bodies if function.startswith(tuple(FILES[name]))]:
                wanted = ['ld.global.v4'] + ['st.global.v4'] * (not function.startswith(NARROW))
                faults += [f'{function} has no {what}' for what in wanted if what not in bodies[function]]
        for name, arch in TILES:
            bodies, resources, _ = sass_listing.kernel_compile(nvcc, root, name, arch, folder)
            faults += spill_faults(resources)
            faults += [f'{function} has no mma.sync' for function, body in bodies.items() if 'mma.sync' not in body]
        for name in WARPGROUPS:
            bodies, resources, _ = sass_listing.kernel_compile(nvcc, root, name, 'sm_90a', folder)
            faults += spill_faults(resources)
            faults += [f'{function}: its products are serialized' for function, found in resources.items()
                       if found.is_serialized]
            faults += [fault for function, body in bodies.items() for fault in warpgroup_faults(function, body)]
    print('\n'.join(faults) or 'all move 16 bytes at a time')
    sys.exit(bool(faults))


main()
