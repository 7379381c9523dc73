#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reckoned roofline of every CUDA kernel, from its machine code. No GPU is needed.

sass.py [--nvcc NVCC] [--nvdisasm NVDISASM] [--arch sm_90a] [--all] > bench/results/sass-h100.md

nvdisasm is the toolkit's, or that of the PyPI package nvidia-cuda-nvdisasm (`pip install --target DIR`; then
--nvdisasm DIR/nvidia/cu13/bin/nvdisasm). --all prints F16 beside BF16 and F32.

The model. A kernel's hot loop is the innermost loop with the most work: flops of tensor cores, fused multiply-adds of
FP32 kernels, else bytes of global memory. Code outside of loops counts as one, if it has as much as LOOP_TURNS turns of
it. Kernels of a row at a time count whole; those that turn over rows, by that loop. One warp's turn costs, on one of
the four schedulers of a multiprocessor,
  issue    a clock for each instruction;
  pipe     32 lanes / (results per clock and multiprocessor / 4) for each instruction of a pipe; the busiest pipe;
  tensor   flops of HMMA and HGMMA / (flops per clock and multiprocessor / 4);
  memory   bytes of LDG and STG / (bytes per second / multiprocessors / clock / 4).
Of kernels with HGMMA, the pipe of loads and stores is shared memory's, 128 bytes a clock: operands pass it too.
Issue and pipe run together: run = max(issue, pipe). Let LIMIT be tensor, the FMA pipe or memory, and W the warps of a
scheduler that registers, shared memory and threads allow.
W warps that pass LIMIT and run in turn are a closed network of queues; its balanced bound from below (Zahorjan, Sevcik,
Eager, Galler 1982) is W / (LIMIT + run + (W - 1) max(LIMIT, run)) turns per clock. So
  expected share = LIMIT * min(1 / max(LIMIT, run), that bound)
  maximum        = LIMIT / max(LIMIT, run): all of the smaller one is hidden.
Of kernels that memory bounds, the network's turns per clock are computed exactly (mean value analysis, Reiser and
Lavenberg 1980), with a third station without a queue: STALL, the clocks for which a warp that is alone waits for its
loads in a turn. A load is there the latency of memory after its issue, and the instructions in between hide a part. If
threads meet at a barrier in a turn, the customers are blocks: a block's turn passes the stations with all of its warps.
For an H200 the bound says 70 % for gelu's backward and residual's forward, which reached 96 and 97 %. The last table of
the output has the exact computation beside the measurement.
Warpgroups (attention_wgmma_*) are in step: a block issues its products, and then its other instructions, one pipe after
the other. So the customers of the network are blocks, or in forward warpgroups, which take turns. Alone, a customer's turn
takes LIMIT + the sum of its pipes and of instructions without one + BLOCK_CLOCKS / turns of a block. BLOCK_CLOCKS is a
block's time for its start, its first copies and its results. It was fitted to forward without turns on an H200, at the
lengths of SEQ_LEN: 194 TFLOP/s for heads of 64, 378 for heads of 128. Backward was not fitted. Reckoned by the same constant it had
175 and 315; measured were 167 and 393.
Rows are of width 1600, and their blocks have the threads that rows_launch.c takes for it.
Instructions are those of the fast path: without the regions behind branches that hold no access to memory; "slow" is
the count with slow cases, masks and dropout. Dropout's own kernels and norms skip no FP32 arithmetic either. Not in the model: bank
conflicts, L2 and its bandwidth, prologues, tails of grids, barriers.

Sources. Results per clock: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", 9.0. Bandwidth,
multiprocessors, clock, flops: H100 SXM data sheet. mma.sync reaches 0.62 of wgmma's rate on Hopper (Luo et al. 2024).
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter

import sass_listing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

GPUS = {'sm_90a': {
    'name': 'H100 SXM', 'multiprocessors': 132, 'clock_hz': 1.83e9, 'bytes_per_s': 3.35e12, 'tensor_flops': 4096,
    'registers': 65536, 'warps': 64, 'blocks': 32, 'shared_bytes': 228 << 10, 'block_shared_bytes': 1 << 10,
    'memory_clocks': 800, 'mma_sync': 0.62}}
SCHEDULERS, LANES = 4, 32
SHARED_BYTES = 128 # a clock of a multiprocessor: one access of a warp to 4 bytes for each lane
RATES = {'fma': 128, 'imad': 64, 'alu': 64, 'half': 128, 'convert': 64, 'slow convert': 16, 'special': 16, 'double': 64,
         'shuffle': 32, 'load/store': 32}
PIPES = {
    'fma': 'FADD FMUL FFMA', 'imad': 'IMAD', 'half': 'HADD2 HMUL2 HFMA2', 'convert': 'F2FP I2FP',
    'slow convert': 'F2F F2I I2F FRND', 'special': 'MUFU POPC FLO', 'double': 'DADD DMUL DFMA DSETP', 'shuffle': 'SHFL',
    'alu': 'IADD3 VIADD LOP3 SHF LEA ISETP FSETP FMNMX FSEL SEL PRMT VIMNMX VIMNMX3 VIADDMNMX IABS FSET PLOP3 FCHK R2P P2R',
    'load/store': 'LDG STG LDS STS LDSM LDGSTS LDL STL LD ST'}
PIPE_OF = {name: pipe for pipe, names in PIPES.items() for name in names.split()}
BLOCK_CLOCKS = 5500 # of a block of warpgroups
SEQ_LEN = {64: 1024, 128: 4096} # of heads of each size, GPT-2's and a long one: causal blocks have half of it on average
# Kernels that FP32 arithmetic bounds, and those of one block or of a few numbers, which only latency bounds.
FMA_BOUND = re.compile(r'matmul_|attention_(fwd|dq|dkv)_(bf16|f16|f32)')
LOOP_TURNS = 8
ROWS_AT_ONCE = ('residual_fwd', 'residual_drop_fwd') # a turn of their loops is a span of the row
ARITHMETIC = re.compile(r'(norm|residual|residual_drop|residual_sums)_(fwd|bwd)|dropout')
ROWS_BACKWARD = re.compile(r'(norm|residual|residual_drop|residual_sums)_bwd')
LATENCY_BOUND = ('clip', 'tree_sum', 'head_finish', 'head_join', 'head_scale', 'embed_sort', 'attention_sinks')


# ---- one instruction ----

def width_bytes(instruction):
    """Return the bytes that a memory instruction moves for one lane."""
    for modifier in instruction.name.split('.')[1:]:
        if modifier in ('64', '128'):
            return int(modifier) // 8
        if modifier in ('U8', 'S8'):
            return 1
        if modifier in ('U16', 'S16'):
            return 2
    return 4


def global_bytes(instruction):
    """Copies to shared memory count with loads and stores: kernels that memory bounds have no others."""
    return width_bytes(instruction) if instruction.base in ('LDG', 'STG', 'LDGSTS') else 0


def register_bytes(instruction):
    return global_bytes(instruction) if instruction.base != 'LDGSTS' else 0


def tensor_flops(instruction):
    """Return one warp's part of the flops: HMMA.16816 is m16 n8 k16 by a warp, HGMMA.64xNx16 is by four."""
    if match := re.match(r'HMMA\.16816', instruction.name):
        return 2 * 16 * 8 * 16
    if match := re.match(r'HGMMA\.(\d+)x(\d+)x(\d+)', instruction.name):
        m, n, k = map(int, match.groups())
        return 2 * m * n * k // 4
    return 0


def operand_clocks(instruction):
    """Return the clocks of shared memory, for a warpgroup, of a product's b, and of its a unless registers hold it; and
    those of a copy beyond four bytes of a lane, which the pipe of loads and stores has counted."""
    if instruction.base == 'LDGSTS':
        return (width_bytes(instruction) - 4) * LANES * SCHEDULERS / SHARED_BYTES
    match = re.match(r'HGMMA\.(\d+)x(\d+)x(\d+)', instruction.name)
    if not match:
        return 0
    m, n, k = map(int, match.groups())
    return 2 * k * (n + (0 if re.match(r'R\d+, R\d+, gdesc', instruction.operands) else m)) / SHARED_BYTES


def is_work(instruction):
    """Accesses to shared memory are work too: a branch skips them in threads past the end of a row, not in others."""
    return tensor_flops(instruction) > 0 or instruction.base in ('LDG', 'STG', 'LDGSTS', 'LDS', 'STS', 'LD', 'ST')


def is_work_or_arithmetic(instruction):
    """Count as work the draws of dropout's kernels, and the part of a norm's that a residual without a norm lacks."""
    return is_work(instruction) or instruction.base in ('FADD', 'FMUL', 'FFMA')


def is_tensor_work(instruction):
    """Count no loads of dropout in kernels that tensor cores bound: without dropout that region is skipped."""
    return tensor_flops(instruction) > 0 or instruction.base == 'LDGSTS'


# ---- one function ----

def work_of(function, limit):
    """Return the measure of an instruction's work for kernels of @limit."""
    if limit == 'tensor':
        return tensor_flops
    if limit == 'fma':
        return lambda instruction: PIPE_OF.get(instruction.base) == 'fma'
    return global_bytes


def limit_of(function):
    if any(tensor_flops(instruction) for instruction in function.code):
        return 'tensor'
    return 'fma' if FMA_BOUND.match(function.name) else 'memory'


def rows_loops(function, loops, own):
    """Return the loops with work and a barrier, and without an inner loop with work: turns over rows that end in a
    reduction. Loops over the spans of a long row are none."""
    def is_inner(inner, loop):
        return inner != loop and loop[0] <= inner[0] and inner[1] <= loop[1]
    return {loop: own[loop] for loop in loops if own[loop] and not any(own[i] for i in loops if is_inner(i, loop))
            and any(i.base == 'BAR' for i in function.code[loop[0]:loop[1] + 1])}


def hot_part(function, measure):
    """Return the indices of the hot part: the loop whose own work, without that of loops inside, is the most; or the
    code outside of all loops, if its work is more. Of loops with equal work it is the shortest: others have dropout. Of
    a norm's backward it is that with two packs a thread: another has the sums of two rows at a time."""
    loops = sorted(sass_listing.loops_find(function), key=lambda loop: loop[1] - loop[0])
    owner = {}
    for loop in loops:
        for at in range(loop[0], loop[1] + 1):
            owner.setdefault(at, loop)
    own = Counter({None: 0})
    for at, instruction in enumerate(function.code):
        own[owner.get(at)] += measure(instruction)
    if function.name.startswith(ROWS_AT_ONCE):
        return list(range(max(at for at, i in enumerate(function.code) if i.base == 'EXIT') + 1))
    own[None] /= LOOP_TURNS
    if measure is global_bytes:
        own = rows_loops(function, loops, own) or own
    best = max(own, key=lambda loop: (own[loop], loop[0] - loop[1] if loop else -len(function.code)))
    if best:
        return list(range(best[0], best[1] + 1))
    ends = [at for at, i in enumerate(function.code) if i.base == 'EXIT' and at not in owner]
    return [at for at in range((ends or [len(function.code) - 1])[-1] + 1) if at not in owner]


def registers_of(instruction, operand):
    """Return the numbers of the registers that a load writes to: its first operand, by its width."""
    match = re.match(r'R(\d+)', operand)
    return set(range(int(match.group(1)), int(match.group(1)) + max(1, width_bytes(instruction) // 4))) if match else set()


def stall_clocks(code, memory_clocks, is_loop):
    """Return the clocks that a warp alone waits for its loads in one turn: of a loop in its second, to which the first
    may have left loads in flight."""
    there_at, now, stalled = {}, 0, 0
    for instruction in [*code, None, *code] if is_loop else code:
        if instruction is None:
            stalled = 0
            continue
        parts = instruction.operands.split(',')
        sources = parts if instruction.base in ('STG', 'STS', 'ST') else parts[1:]
        for register in [int(n) for part in sources for n in re.findall(r'\bR(\d+)', part)]:
            wait = max(0, there_at.pop(register, 0) - now)
            stalled, now = stalled + wait, now + wait
        now += 1
        if instruction.base == 'LDG':
            there_at.update(dict.fromkeys(registers_of(instruction, parts[0].strip()), now + memory_clocks))
    return stalled


def demands(function, gpu):
    """Return the clocks of one warp's turn on one scheduler, by station, and the counts from which they follow."""
    limit = limit_of(function)
    part = hot_part(function, work_of(function, limit))
    has_work = is_tensor_work if limit == 'tensor' else is_work_or_arithmetic if ARITHMETIC.match(function.name) else is_work
    fast = set(sass_listing.fast_path(function, part[0], part[-1], has_work))
    code = [function.code[at] for at in part if at in fast]
    code = [i for i in code if not (i.base == 'LDS' and i.operands.startswith('RZ'))] # never executed
    pipes = Counter(PIPE_OF[i.base] for i in code if i.base in PIPE_OF)
    pipe_clocks = {pipe: n * LANES * SCHEDULERS / RATES[pipe] for pipe, n in pipes.items()}
    pipe_clocks['fma'] = pipe_clocks.get('fma', 0) + pipe_clocks.get('imad', 0) / 2
    if any(i.base == 'HGMMA' for i in code):
        pipe_clocks['load/store'] = pipe_clocks.get('load/store', 0) + sum(map(operand_clocks, code))
    n_bytes = sum(map(global_bytes if limit == 'memory' else register_bytes, code))
    flops = sum(map(tensor_flops, code))
    rate = gpu['tensor_flops'] * (gpu['mma_sync'] if any(i.base == 'HMMA' for i in code) else 1)
    per_clock = gpu['bytes_per_s'] / gpu['multiprocessors'] / gpu['clock_hz']
    busiest = max(pipe_clocks, key=lambda pipe: pipe_clocks[pipe])
    clocks = {'issue': len(code), 'pipe': pipe_clocks[busiest], 'tensor': flops * SCHEDULERS / rate,
              'memory': n_bytes * LANES * SCHEDULERS / per_clock, 'fma': pipe_clocks['fma'],
              'in step': len(code) - sum(pipes.values()) + sum(n * LANES * SCHEDULERS / RATES[pipe]
                                                               for pipe, n in pipes.items())}
    is_loop = sass_listing.target_find(function, part[-1]) == part[0]
    return {'limit': limit, 'clocks': clocks, 'busiest': busiest, 'bytes': n_bytes, 'flops': flops, 'slow': len(part),
            'stall': stall_clocks(code, gpu['memory_clocks'], is_loop) if limit == 'memory' else 0,
            'has_barrier': any(function.code[at].base == 'BAR' for at in part)}


# ---- occupancy and shares ----

def constants_read():
    """Return a function of (name, head_dim) to the value of LADE_CUDA_<name> in phases.h, or LADE_<name> in kernels.h."""
    found = {}
    for path in ('kernels/kernels.h', 'kernels/cuda/phases.h'):
        with open(os.path.join(ROOT, path), encoding='utf-8') as file:
            found |= re.findall(r'#define LADE_(?:CUDA_)?(\w+)(?:\(dim\))? (.+?)(?:\s*/\*.*)?\n', file.read())

    def get(name, dim=0):
        text = found[name]
        while match := re.match(r'\(?\(dim\) (==|<=) (\d+) \? (\d+) : (.+?)\)?$', text):
            order, limit, yes, no = match.groups()
            text = yes if dim == int(limit) or (order == '<=' and dim < int(limit)) else no
        return int(text)
    return get


def launch_shared_bytes(name):
    """Return the shared memory of a launch, as the *_launch.c files request it: width 1600 for rows, heads by name."""
    get = constants_read()
    dim = int(match.group(1)) if (match := re.search(r'_(64|80|96|128|256)_', name)) else 64
    if match := re.match(r'attention_mma_(?:form_|more_)?(fwd|dq|dkv)_', name):
        part = match.group(1).upper()
        rows, tile = get(f'MMA_{part}_ROWS', dim), get(f'MMA_{part}_TILE', dim)
        return ((1 if part == 'FWD' else 2) * rows + 4 * tile) * get('MMA_PITCH', dim) * 2 + (16 * tile if part == 'DKV' else 0)
    if match := re.match(r'attention_wgmma_(fwd|dq|dkv)_', name):
        places, rows, tile = get('WGMMA_BWD_PLACES', dim), get('WGMMA_ROWS'), get('WGMMA_TILE', dim)
        n = {'fwd': rows + 2 * get('WGMMA_PLACES') * tile,
             'dq': 2 * get('WGMMA_DQ_ROWS', dim) + (places + 2) * get('WGMMA_DQ_TILE', dim),
             'dkv': 2 * get('WGMMA_DKV_ROWS', dim) + 2 * places * get('WGMMA_DKV_TILE')}[match.group(1)]
        extra = 8 * places * get('WGMMA_DKV_TILE') if match.group(1) == 'dkv' else 0
        return n * dim * 2 + extra + get('WGMMA_ALIGN')
    if match := re.match(r'attention_(fwd|dq|dkv)_(?!sum)', name):
        tile = get('ATTENTION_TILE')
        n = get('ATTENTION_FWD_ROWS') + tile if match.group(1) == 'fwd' else 2 * (get('ATTENTION_BWD_ROWS') + tile)
        return 4 * (get('ATTENTION_THREADS') + n * (dim + 1))
    if name.startswith('matmul_'):
        return 2 * get('SLAB') * (get('TILE') + 1) * 4
    if ROWS_BACKWARD.match(name):
        return 4 * get('ROOM_FLOATS') + 2 * 3 * get('NORM_BWD_PACKS') * get('THREADS') * 16
    if name.startswith('norm_fwd'):
        return 4 * get('ROOM_FLOATS') + 2 * get('ROW_PACKS') * launch_warps(name) * LANES * 16
    if name.startswith('sum_squares'):
        return 8 * get('SUM_SPAN')
    if re.match(r'(column_sum|gelu_bwd_columns)', name):
        return 4 * get('THREADS') * (4 if name.endswith('f32') else 8)
    return 4 * get('ROOM_FLOATS')


def launch_warps(name, n_threads=0):
    """Return the warps of a block: those of @n_threads, the most; or those that the *_launch.c files take, for rows of
    width 1600."""
    get, packs = constants_read(), MODEL['width'] // (4 if name.endswith('f32') else 8)
    if ROWS_BACKWARD.match(name):
        n_threads = -(-packs // (1 if packs <= get('THREADS') else 2))
    elif name.startswith(('norm_fwd', *ROWS_AT_ONCE)):
        n_threads = -(-packs // get('ROW_PACKS'))
    elif name.startswith('sum_squares'):
        n_threads = get('SUM_THREADS')
    return -(-n_threads // LANES)


def grid_blocks(name, gpu):
    """Return the most blocks of a multiprocessor that the grid has: the backward of rows has few and long ones."""
    return -(-constants_read()('ROW_BLOCKS') // gpu['multiprocessors']) if ROWS_BACKWARD.match(name) else gpu['blocks']


def warps_resident(name, resources, warps, shared_bytes, gpu):
    """Return the warps of a multiprocessor: the fewest that registers (allocated by 256 a warp), shared memory, blocks,
    the grid and warps allow, in blocks of @warps."""
    by_registers = gpu['registers'] // (-(-resources.registers * LANES // 256) * 256) // warps
    by_shared = gpu['shared_bytes'] // (resources.shared_bytes + shared_bytes + gpu['block_shared_bytes'])
    return warps * min(by_registers, by_shared, gpu['blocks'], grid_blocks(name, gpu), gpu['warps'] // warps)


def tile_rows(name):
    """Return the part of a kernel of warpgroups, the size of its heads, and the rows of its tiles."""
    part, dim = re.match(r'attention_wgmma_(fwd|dq|dkv)_(\d+)', name).groups()
    get, dim = constants_read(), int(dim)
    return part, dim, {'fwd': lambda: get('WGMMA_TILE', dim), 'dq': lambda: get('WGMMA_DQ_TILE', dim),
                       'dkv': lambda: get('WGMMA_DKV_TILE')}[part]()


def diagonal_rows(name):
    """Return the rows that have the same tiles: a block's. In forward, where the warpgroups are the customers, the first
    keeps its place until the second ends."""
    part, dim, _ = tile_rows(name)
    get = constants_read()
    return get('WGMMA_ROWS') if part == 'fwd' else get(f'WGMMA_{part.upper()}_ROWS', dim)


def block_turns(name):
    """Return the turns of an average causal block of warpgroups: the rows of the other side that it meets, by tiles."""
    _, dim, tile = tile_rows(name)
    return (SEQ_LEN[dim] + diagonal_rows(name)) / 2 / tile


def warpgroups_share(found, n_warps, block_warps, turns, is_in_turns):
    """Return the share of the limit that is expected of blocks of warpgroups, and its maximum."""
    customer_warps = 4 if is_in_turns else block_warps
    n_customers, each = n_warps / customer_warps, customer_warps / SCHEDULERS
    clocks = found['clocks']
    limit, longest = clocks['tensor'], max(clocks['tensor'], clocks['issue'], clocks['pipe'])
    alone = each * (limit + clocks['in step']) + BLOCK_CLOCKS / turns
    bound = n_customers * each * limit / (alone + (n_customers - 1) * each * longest)
    return min(bound, limit / longest), limit / longest


def turns_get(n_customers, queues, delay):
    """Return the turns per clock of @n_customers of a closed network: @queues are clocks at each, @delay the others."""
    lengths, turns = [0] * len(queues), 0
    for n in range(1, n_customers + 1):
        clocks = [clock * (1 + length) for clock, length in zip(queues, lengths)]
        turns = n / (delay + sum(clocks))
        lengths = [turns * clock for clock in clocks]
    return turns


def shares_get(found, n_warps, block_warps):
    """Return the share of the limit that is expected, and its maximum."""
    limit = found['clocks'][found['limit']]
    run = max(found['clocks']['issue'], found['clocks']['pipe'])
    if found['limit'] == 'fma': # the pipe is the limit: other instructions beside it are hidden or not
        run = found['clocks']['issue']
    longest = max(limit, run)
    if found['limit'] == 'memory':
        warps = block_warps if found['has_barrier'] else SCHEDULERS # of a customer; each scheduler has a fourth of them
        clocks = [limit * warps / SCHEDULERS, run * warps / SCHEDULERS]
        return clocks[0] * turns_get(n_warps // warps, clocks, found['stall']), limit / longest
    warps = n_warps / SCHEDULERS
    bound = warps / (limit + run + (warps - 1) * longest)
    return limit * min(1 / longest, bound), limit / longest


def row_make(function, resources, gpu):
    found = demands(function, gpu)
    shared = launch_shared_bytes(function.name)
    block_warps = launch_warps(function.name, resources.threads)
    n_warps = warps_resident(function.name, resources, block_warps, shared, gpu)
    if '_wgmma_' in function.name:
        expected, max_share = warpgroups_share(found, n_warps, block_warps, block_turns(function.name),
                                          '_fwd_' in function.name)
    else:
        expected, max_share = shares_get(found, n_warps, block_warps)
    clocks = found['clocks']
    is_latency = function.name.startswith(LATENCY_BOUND)
    share = ['latency', '', ''] if is_latency else [found['limit'], f'{100 * expected:.0f} %', f'{100 * max_share:.0f} %']
    return [function.name, resources.registers, resources.spill_bytes or '', f'{(resources.shared_bytes + shared) / 1024:.1f}',
            n_warps, found['bytes'], found['flops'] // 1024 or '', clocks['issue'], found['slow'],
            f"{found['busiest']} {clocks['pipe']:.0f}", f"{clocks['memory']:.0f}", f"{clocks['tensor']:.0f}", *share]


# ---- a step ----

# GPT-2 1.5B in BF16. Products by cuBLASLt are taken at a share of the peak, which no machine code here decides: that of
# steps, or the rates that they reached alone. Power limits the clock in steps.
MODEL = {'layers': 48, 'width': 1600, 'heads': 25, 'seq_len': 1024, 'vocabulary': 50257}
# In steps on two H200s, of 989 TFLOP/s: 199.8 ms (nvidia-h200-first.md) and 207.4 ms (nvidia-h200-power.md).
PRODUCTS_IN_STEPS = (0.733, 0.707)
PRODUCTS = sum(PRODUCTS_IN_STEPS) / len(PRODUCTS_IN_STEPS)
PRODUCTS_CAREFUL = 0.70
# TFLOP/s of a layer's products alone on an H200 (nvidia-h200-first.md), forward and two backward, and their part of a
# layer's operations. That of attention's projection, a third of the first line, was not measured.
PRODUCTS_MEASURED = [((723, 777, 703), 4), ((761, 769, 757), 8)]
COPY = 0.92 # of the bandwidth, by a copy
# Bytes that a token moves through a layer's kernels bound by memory, in units of the width: read and written.
# A layer has a norm, a residual with a norm, and one without, whose backward passes its gradient on. The backward of
# the residual with a norm reads that gradient too, and makes the column sums of the MLP's second bias.
# GELU's backward is the epilogue of a product, which reads its x; then the gradient of the MLP's first bias is column
# sums: as an epilogue of the weight's product it would take longer (nvidia-h200.md). Attention's dq loads out for delta,
# as if by a copy of its own.
LAYER_BYTES = {'norm_fwd_bf16': 4, 'residual_fwd_bf16': 8 + 6, 'norm_bwd_bf16': 8, 'residual_sums_bwd_bf16': 8,
               'gelu_fwd_bf16': 16, 'copy': 8 + 2, 'column_sum_bf16': 8}
HEAD_BYTES = {'head_reduce': 4, 'head_gradient_bf16': 6} # of a logit, beside the products' own 4 written
OPTIMIZER_BYTES = 28 # of a parameter: adamw_bf16
# Sums of squares read 4 bytes of a parameter. A launch for each tensor takes at least the additions of one lane, one
# after the other: 11.8 ms a step were measured on an H200 when blocks had 65,536 elements. The bytes take 2.6 of them at
# the measured bandwidth, so 580 chains of 4,096 additions take at most 9.2.
LAYER_TENSORS, OTHER_TENSORS = 12, 4
LANE_ADDITION_S = 9.2e-3 / 580 / 4096
# Products of attention's kernels, each of T d operations of a token, and the rows of their blocks.
ATTENTION = {'forward': ('attention_wgmma_fwd_64_bf16', 2), 'dq': ('attention_wgmma_dq_64_bf16', 3),
             'dk, dv': ('attention_wgmma_dkv_64_bf16', 4)}


def diagonal_get(name):
    """Return the operations that a causal kernel of warpgroups executes, over those below the diagonal."""
    return 1 + diagonal_rows(name) / SEQ_LEN[64 if '_64_' in name else 128]


def step_reckon(share_of, gpu, n_head_products, products=PRODUCTS, layer_bytes=None, tokens=524288):
    """Return the nanoseconds of a token, by part, and the share of the speed of light, from @share_of(kernel)."""
    layer_bytes = layer_bytes or LAYER_BYTES
    layers, d, t, v = (MODEL[name] for name in ('layers', 'width', 'seq_len', 'vocabulary'))
    peak = gpu['tensor_flops'] * gpu['multiprocessors'] * gpu['clock_hz']
    weights, head, attention = layers * 12 * d * d, v * d, layers * d * t
    parts = {'products of layers': 6 * weights / (products * peak),
             'products of the head': 2 * n_head_products * head / (products * peak)}
    for part, (kernel, n) in ATTENTION.items():
        parts[f'attention {part}'] = n * attention * diagonal_get(kernel) / (share_of(kernel) * peak)
    rate = COPY * gpu['bytes_per_s']
    parts['elementwise'] = sum(layers * d * n / (share_of(kernel) * rate) for kernel, n in layer_bytes.items())
    # with three products the logits are written once; with four, twice
    parts['rows of logits'] = sum(v * n / (share_of(kernel) * rate) for kernel, n in HEAD_BYTES.items()) + \
        v * 4 * (n_head_products - 2) / rate
    parts['optimizer'] = (weights + head) * OPTIMIZER_BYTES / tokens / (share_of('adamw_bf16') * rate)
    chains = (LAYER_TENSORS * layers + OTHER_TENSORS) * constants_read()('SUM_BLOCK') / constants_read()('SUM_LANES')
    sums_s = (weights + head) * 4 / (share_of('sum_squares_f32') * rate) + chains * LANE_ADDITION_S
    parts['sums of squares'] = sums_s / tokens
    fastest_s = (6 * (weights + head) + 6 * attention) / peak
    return {name: 1e9 * seconds for name, seconds in parts.items()}, fastest_s / sum(parts.values())


# Operations of attention, in units of T d of a token and layer, and the rates of its kernels alone on an H200, 25 heads of
# 64, 16 sequences of 1,024 tokens (nvidia-h200-power.md). Its dq had blocks of 128 queries, and delta a kernel.
ATTENTION_MEASURED = {'forward': (2, 297e12), 'backward': (5, 219e12)}


def attention_beside(parts):
    """Return (part, reckoned and measured operations a second, measured nanoseconds of a token) of a step's @parts."""
    token = MODEL['layers'] * MODEL['width'] * MODEL['seq_len']
    reckoned = {'forward': parts['attention forward'], 'backward': parts['attention dq'] + parts['attention dk, dv']}
    return [(part, n * token / reckoned[part] * 1e9, rate, n * token / rate * 1e9)
            for part, (n, rate) in ATTENTION_MEASURED.items()]


def attention_print(share_of, gpu):
    parts, light = step_reckon(share_of, gpu, 3)
    rows, all_ns = attention_beside(parts), sum(parts.values())
    reckoned_ns = sum(ns for name, ns in parts.items() if name.startswith('attention'))
    slower_ns = all_ns - reckoned_ns + sum(row[3] for row in rows)
    print('\n## Attention beside an H200\n')
    print('Attention is reckoned faster than an H200 ran it: backward was never fitted, and forward\'s constant is of an\n'
          f'older kernel. At the measured rates a token takes {slower_ns:.0f} ns, {light * all_ns / slower_ns:.1%} of the speed '
          'of light. Heads of 64,\n16 sequences of 1,024 tokens; the measured dq had blocks of 128 queries.\n')
    print('|part|reckoned, TFLOP/s|measured|\n|---|---:|---:|')
    for part, reckoned, measured, _ in rows:
        print(f'|{part}|{reckoned / 1e12:.0f}|{measured / 1e12:.0f}|')


# The best of measured algorithms against the heuristic's first, as a factor of the products' rate (nvidia-h200.md).
CHOICES = 1 / 0.992
# --gelu-fusion, as below: the product writes GELU beside its sum, and GELU's kernel neither reads nor writes.
GELU_FUSION = {'gelu_fwd_bf16': -16, 'copy': 8}
# Changes that shorten the reckoned step, each on top of those before: words, bytes that a token's layer moves more in
# each kernel, in units of the width ("copy": at a copy's bandwidth), and the factor of the products' rate.
CHANGES = [
    ("`--gelu-fusion`: GELU's forward in its product", GELU_FUSION, None),
    ('products by the best of measured algorithms, 0.8 %: where a file of choices is', {}, CHOICES),
    ("a layer's last residual with the next layer's first norm: one kernel of two units, whose weights may not be there "
     'together', {'residual_fwd_bf16': 2, 'norm_fwd_bf16': -4}, None),
    ('residuals added by the products before them; tight budgets get slower, because operands, residual and sum are there '
     'at once', {'residual_fwd_bf16': -(8 + 8), 'norm_fwd_bf16': 4 + 4, 'copy': 2 + 2}, None)]


def layer_bytes_with(more):
    """Return the bytes of a layer with those of a change."""
    return {kernel: LAYER_BYTES.get(kernel, 0) + more.get(kernel, 0) for kernel in LAYER_BYTES | more}


def changes_reckon(share_of, gpu, products=PRODUCTS):
    """Return (words, nanoseconds of a token, share of the speed of light) after each change. The last entry has the
    remaining rows, of layers and of logits, at a copy's bandwidth. The step has three products of the head."""
    layer_bytes, rows = dict(LAYER_BYTES), []

    def row_add(words, share):
        parts, light = step_reckon(share, gpu, 3, products, layer_bytes)
        rows.append((words, sum(parts.values()), light))
    row_add('today', share_of)
    for words, more, factor in CHANGES:
        for kernel, n in more.items():
            layer_bytes[kernel] = layer_bytes.get(kernel, 0) + n
        products *= factor or 1
        row_add(words, share_of)
    row_add("all kernels that memory bounds at a copy's bandwidth",
            lambda kernel: share_of(kernel) if kernel.startswith('attention') else 1)
    return rows


def products_alone(gpu):
    """Return the share of the peak that a layer's products reached alone."""
    seconds = sum(n * sum(1 / rate for rate in rates) / len(rates) for rates, n in PRODUCTS_MEASURED)
    peak = gpu['tensor_flops'] * gpu['multiprocessors'] * gpu['clock_hz']
    return sum(n for _, n in PRODUCTS_MEASURED) / seconds * 1e12 / peak


def changes_print(share_of, gpu):
    rows, careful = changes_reckon(share_of, gpu), changes_reckon(share_of, gpu, PRODUCTS_CAREFUL)
    parts, light = step_reckon(share_of, gpu, 3)
    left = sum(ns for name, ns in parts.items() if name.startswith(('products', 'attention')))
    fastest_ns = light * sum(parts.values())
    print('\n## Changes that shorten a step\n')
    print('Each row on top of those above. The first two are built, to be chosen by the user (docs/cuda.md), the others are '
          f'not.\n60 % needs {fastest_ns / 0.6:.0f} ns; products and attention alone take {left:.0f}.\n')
    print('|change|ns of a token|share of the speed of light|'
          f'with products at {PRODUCTS_CAREFUL:.0%}|\n|---|---:|---:|---:|')
    for (words, ns, after), (_, _, after_careful) in zip(rows, careful):
        print(f'|{words}|{ns:.0f}|{after:.1%}|{after_careful:.1%}|')


L2_BYTES_PER_CLOCK = 5120 # NVIDIA's paper on the A100; for the H100 none is stated


def one_pass_reckon(share_of, gpu, key_rows):
    """Return nanoseconds of a token for attention's backward in one pass, heads of 64, if its five products reach the
    share of dk and dv's kernel, and the terabytes per second that it then moves out of L2 and back: dq in FP32 for each
    block of @key_rows, and tiles of queries and their gradients. dq goes to memory in FP32, back, and out in 16 bits."""
    kernel, dim = ATTENTION['dk, dv'][0], 64
    layers, width, seq_len = (MODEL[name] for name in ('layers', 'width', 'seq_len'))
    flops = 5 * layers * width * seq_len * diagonal_get(kernel)
    peak = gpu['tensor_flops'] * gpu['multiprocessors'] * gpu['clock_hz']
    seconds = flops / (share_of(kernel) * peak) + layers * width * (4 + 4 + 2) / (COPY * gpu['bytes_per_s'])
    query_rows = flops / (5 * 2 * key_rows * dim) # met by a block of keys, a row at a time
    return 1e9 * seconds, query_rows * dim * (4 + 4 + 2 + 2) / seconds / 1e12


def one_pass_print(share_of, gpu):
    parts = step_reckon(share_of, gpu, 3)[0]
    print('\n## Attention\'s backward in one pass\n')
    two_ns = parts['attention dq'] + parts['attention dk, dv']
    print(f'Two kernels take {two_ns:.0f} ns of a token, with seven products. One with five takes the time below, if L2 '
          'and the order of\nsums cost nothing. '
          f"{L2_BYTES_PER_CLOCK * gpu['clock_hz'] / 1e12:.1f} TB/s are the most that L2 can have at "
          f'{L2_BYTES_PER_CLOCK} bytes a clock. It is not built.\n')
    print('|keys of a block|ns of a token|through L2, TB/s|\n|---:|---:|---:|')
    for key_rows in (64, 128):
        ns, rate = one_pass_reckon(share_of, gpu, key_rows)
        print(f'|{key_rows}|{ns:.0f}|{rate:.1f}|')


# Percent of a copy's bandwidth that kernels reached on an H200, which is this processor with other memory, and that
# bandwidth (nvidia-h200.md, the last column; rows of 1,600 where they were measured).
H200_SHARES = {'add': 102, 'cast_bf16': 99, 'swiglu_fwd_bf16': 102, 'swiglu_bwd_bf16': 103, 'adamw_bf16': 101,
               'gelu_fwd_bf16': 95, 'gelu_bwd_bf16': 94, 'rope_bf16': 91, 'dropout_bf16': 90, 'residual_fwd_bf16': 99,
               'residual_bwd_bf16': 96, 'norm_fwd_bf16': 84, 'norm_bwd_bf16': 90, 'column_sum_bf16': 87,
               'sum_squares_f32': 88}
H200_COPY = 4.03e12


def beside_print(functions, resources, gpu):
    """Print the model's predictions for an H200 beside the measurements there."""
    print('\n## The model beside an H200\n')
    print('Percent of the bandwidth of a copy, 4.03 TB/s there. The model leaves out the start and end of blocks, and takes '
          'it\nthat a multiprocessor\'s blocks meet at random, where those of a grid without a second turn begin together.\n')
    print('|kernel|measured|reckoned|\n|---|---:|---:|')
    for name, measured in H200_SHARES.items():
        row = row_make(functions[name], resources[name], gpu | {'bytes_per_s': H200_COPY})
        print(f'|{name}|{measured}|{row[13].rstrip(" %")}|')


def step_print(rows, gpu):
    shares = {row[0]: float(row[13].rstrip(' %')) / 100 for row in rows if row[13]} | {'copy': 1}
    shares |= {name: min(1, share / 100) for name, share in H200_SHARES.items()}
    alone = products_alone(gpu)
    print('\n## GPT-2 1.5B in BF16, reckoned\n')
    print(f'Nanoseconds of a token. Products are taken at {PRODUCTS:.1%} of the peak, the mean of steps on two H200s, '
          f'{PRODUCTS_IN_STEPS[0]:.1%} and\n{PRODUCTS_IN_STEPS[1]:.1%}. At {alone:.1%} those of layers were measured alone, '
          f'without the power limit of a step. Copies are at {COPY:.0%} of\nthe bandwidth; kernels at the shares that an H200 measured, others at their expected ones; '
          'causal attention\nwith its skipped tiles. Collectives, launches, the host and the instructions of epilogues are '
          'left out.\n')
    heads = ['four products of the head', 'three', 'with `--gelu-fusion`', 'and a file of choices',
             f'three, products at {PRODUCTS_CAREFUL:.0%}', f'three, at {alone:.1%}']
    print('|part|' + '|'.join(heads) + '|\n|---|' + '---:|' * len(heads))
    fused = layer_bytes_with(GELU_FUSION)
    columns = [step_reckon(shares.get, gpu, *case)
               for case in ((4, PRODUCTS), (3, PRODUCTS), (3, PRODUCTS, fused), (3, PRODUCTS * CHOICES, fused),
                            (3, PRODUCTS_CAREFUL), (3, alone))]
    for name in columns[0][0]:
        print(f'|{name}|' + '|'.join(f'{parts[name]:.0f}' for parts, _ in columns) + '|')
    print('|share of the speed of light|' + '|'.join(f'{light:.1%}' for _, light in columns) + '|')
    attention_print(shares.get, gpu)
    changes_print(shares.get, gpu)
    one_pass_print(shares.get, gpu)


HEADS = ['kernel', 'registers', 'spill B', 'shared KiB', 'warps / SM', 'B / thread', 'kflop / warp', 'issue', 'slow',
         'busiest pipe', 'memory', 'tensor', 'limit', 'expected', 'maximum']


def table_print(rows):
    print('|' + '|'.join(HEADS) + '|')
    print('|---' + '|---:' * (len(HEADS) - 1) + '|')
    for row in rows:
        print('|' + '|'.join(str(cell) for cell in row) + '|')


def nvdisasm_find(nvcc):
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), 'nvdisasm')
    return beside if os.path.exists(beside) else shutil.which('nvdisasm')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--nvcc', default=shutil.which('nvcc') or '/usr/local/cuda/bin/nvcc')
    parser.add_argument('--nvdisasm')
    parser.add_argument('--arch', choices=GPUS, default='sm_90a')
    parser.add_argument('--all', action='store_true', help='F16 too')
    parser.add_argument('--file', action='append', help='only this one, such as gelu; may be repeated')
    args = parser.parse_args()
    nvdisasm = args.nvdisasm or nvdisasm_find(args.nvcc)
    if not nvdisasm or not os.path.exists(args.nvcc):
        sys.exit('nvcc or nvdisasm is missing: pip install nvidia-cuda-nvdisasm and name it with --nvdisasm')
    gpu = GPUS[args.arch]
    names = args.file or sorted(os.path.basename(path)[:-3] for path in glob.glob(ROOT + '/kernels/cuda/*/*.cu'))
    rows, all_functions, all_resources = [], {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            _, resources, cubin = sass_listing.kernel_compile(args.nvcc, ROOT, name, args.arch, folder)
            functions = sass_listing.listing_read(sass_listing.disassemble(nvdisasm, cubin))
            all_functions |= functions
            all_resources |= resources
            rows += [row_make(functions[f], resources[f], gpu) for f in sorted(resources)
                     if args.all or not f.endswith('_f16')]
    release = subprocess.run([args.nvcc, '--version'], check=True, capture_output=True, text=True).stdout
    print(f"# Reckoned from machine code: {gpu['name']}\n")
    print(f"`bench/sass.py` ({args.arch}, nvcc {re.search('release ([0-9.]+)', release).group(1)}); its head states the "
          'model.\nClocks are of one warp\'s turn of the hot loop on one scheduler. No figure of this table was measured.\n')
    table_print(rows)
    if not args.file:
        step_print(rows, gpu)
        beside_print(all_functions, all_resources, gpu)


if __name__ == '__main__':
    main()
