#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reader of machine code and the model of bench/sass.py, over a stored listing whose figures are known by hand.

sass_model.py SOURCE_ROOT"""
import os
import sys
import unittest

ROOT = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(ROOT, 'bench'))
import sass # noqa: E402
import sass_listing # noqa: E402

GPU = sass.GPUS['sm_90a']
# Flops of attention executed, over those of products, in a layer: forward by 128 rows, gradients by 64.
MODEL_ATTENTION = (2 * (1024 + 128) + (3 + 4) * (1024 + 64)) / (6 * 12 * 1600)
TOLD = """ptxas info    : Compiling entry function 'copy_bf16' for 'sm_90a'
ptxas info    : Function properties for copy_bf16
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 33 registers, used 1 barriers, 1024 bytes smem
ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the function 'multiply_bf16'
ptxas info    : Compiling entry function 'multiply_bf16' for 'sm_90a'
ptxas info    : Used 128 registers, used 0 barriers
"""


class Listing(unittest.TestCase):
    def setUp(self):
        with open(os.path.join(ROOT, 'tests/on_fakes/sass_listing.sass'), encoding='utf-8') as file:
            self.functions = sass_listing.listing_read(file.read())
        self.copy, self.multiply = self.functions['copy_bf16'], self.functions['multiply_bf16']

    def test_functions_and_instructions(self):
        self.assertEqual(list(self.functions), ['copy_bf16', 'multiply_bf16'])
        self.assertEqual(len(self.copy.code), 16)
        self.assertEqual([i.name for i in self.copy.code[3:5]], ['LDG.E.128'] * 2)
        self.assertEqual([i.is_conditional for i in self.copy.code[9:12]], [False, True, False])

    def test_loops_but_not_the_padding(self):
        self.assertEqual(sass_listing.loops_find(self.copy), [(3, 12)])
        self.assertEqual(sorted(sass_listing.loops_find(self.multiply)), [(1, 7), (2, 5)])

    def test_fast_path_leaves_out_the_slow_case(self):
        kept = sass_listing.fast_path(self.copy, 3, 12, sass.is_work)
        self.assertEqual(kept, [3, 4, 5, 6, 9, 10, 11, 12])

    def test_fast_path_keeps_shared_memory_and_of_dropout_arithmetic(self):
        self.copy.code[7] = sass_listing.Instruction(0, 'LDS.64', 'R2, [R3]', False)
        self.assertEqual(sass_listing.fast_path(self.copy, 3, 12, sass.is_work), list(range(3, 13)))
        self.copy.code[7] = sass_listing.Instruction(0, 'FMUL', 'R2, R3, R4', False)
        self.assertEqual(sass_listing.fast_path(self.copy, 3, 12, sass.is_work), [3, 4, 5, 6, 9, 10, 11, 12])
        self.copy.name = 'dropout_bf16'
        self.assertEqual(sass.demands(self.copy, GPU)['clocks']['issue'], 10)

    def test_operands_of_products_pass_shared_memory(self):
        def clocks(name, operands):
            return sass.operand_clocks(sass_listing.Instruction(0, name, operands, False))
        self.assertEqual(clocks('HGMMA.64x64x16.F32.BF16', 'R56, gdesc[UR16], R56, gsb0'), 32)
        self.assertEqual(clocks('HGMMA.64x64x16.F32.BF16', 'R88, R24, gdesc[UR16].tnspB, R88'), 16)
        self.assertEqual(clocks('HGMMA.64x128x16.F32', 'R24, gdesc[UR16], RZ, !UPT'), 48)
        self.assertEqual(clocks('HMMA.16816.F32.BF16', 'R4, R8, R12, R4'), 0)
        self.assertEqual(clocks('LDGSTS.E.BYPASS.128', '[R11], desc[UR34][R18.64], !P1'), 12)

    def test_accesses_that_no_lane_makes_do_not_count(self):
        self.copy.code[7] = sass_listing.Instruction(0, 'LDS', 'RZ, [RZ]', True)
        before = sass.demands(self.copy, GPU)['clocks']
        self.copy.code[7] = sass_listing.Instruction(0, 'LDS', 'R2, [RZ]', False)
        self.assertEqual(sass.demands(self.copy, GPU)['clocks']['issue'], before['issue'] + 1)

    def test_fast_path_keeps_what_has_work(self):
        kept = sass_listing.fast_path(self.copy, 0, 13, sass.is_work)
        self.assertIn(3, kept)

    def test_widths(self):
        self.assertEqual([sass.global_bytes(self.copy.code[at]) for at in (3, 9, 10, 11)], [16, 16, 2, 2])
        self.assertEqual(sass.width_bytes(sass_listing.Instruction(0, 'LDG.E', 'R4', False)), 4)

    def test_flops_of_a_warp(self):
        self.assertEqual([sass.tensor_flops(self.multiply.code[at]) for at in (2, 4)], [4096, 2 * 64 * 128 * 16 // 4])

    def test_hot_loop_is_the_inner_one(self):
        self.assertEqual(sass.hot_part(self.multiply, sass.tensor_flops), [2, 3, 4, 5])
        self.assertEqual(sass.hot_part(self.copy, sass.global_bytes), list(range(3, 13)))

    def test_hot_part_is_the_loop_if_work_outside_is_equal(self):
        code = self.multiply.code
        peeled = sass_listing.Function('peeled')
        peeled.code, peeled.labels = code[2:5] + code, {name: at + 3 for name, at in self.multiply.labels.items()}
        self.assertEqual(sass.hot_part(peeled, sass.tensor_flops), [5, 6, 7, 8])

    def test_hot_part_is_outside_of_loops_if_the_work_is(self):
        self.copy.labels['.L_x_0'] = 10 # now the loop has the packs' remainder alone, 4 bytes
        self.assertEqual(sass.hot_part(self.copy, sass.global_bytes), [*range(10), 13])
        self.copy.labels['.L_x_0'] = 9 # 20 bytes, and 32 outside: less than the loop's turns have
        self.assertEqual(sass.hot_part(self.copy, sass.global_bytes), [9, 10, 11, 12])

    def test_hot_part_of_a_row_at_a_time_is_all_code(self):
        self.copy.name = 'residual_fwd_bf16'
        self.assertEqual(sass.hot_part(self.copy, sass.global_bytes), list(range(14)))

    def test_hot_loop_is_the_one_that_ends_in_a_reduction(self):
        def loop(first, last):
            return list(range(first, last + 1))
        code, labels = list(self.copy.code), dict(self.copy.labels)
        barrier = sass_listing.Instruction(0, 'BAR.SYNC', '0x0', False)
        # rows of 48 bytes a turn in front of a loop over spans of 52
        rows = [code[3], code[4], code[9], barrier, sass_listing.Instruction(0, 'BRA', '`(.L_rows)', True)]
        self.copy.code = rows + code
        self.copy.labels = {name: at + 5 for name, at in labels.items()} | {'.L_rows': 0}
        self.assertEqual(sass.hot_part(self.copy, sass.global_bytes), loop(0, 4))
        rows[3] = code[5]
        self.copy.code = rows + code
        self.assertEqual(sass.hot_part(self.copy, sass.global_bytes), loop(8, 17))

    def test_a_warp_alone_waits_for_each_group_of_loads(self):
        self.assertEqual(sass.stall_clocks(self.copy.code[3:13], 800, True), 799 + 800)

    def test_a_load_for_the_next_turn_is_hidden_by_this_one(self):
        def at(name, operands):
            return sass_listing.Instruction(0, name, operands, False)
        turn = [at('FADD', 'R8, R4, 1'), at('LDG.E.128', 'R4, desc[UR6][R2.64]')] + [at('FADD', 'R20, R20, 1')] * 100
        self.assertEqual(sass.stall_clocks(turn, 800, True), 800 - 100)
        self.assertEqual(sass.stall_clocks(turn, 90, True), 0)
        self.assertEqual(sass.stall_clocks(turn, 800, False), 0) # nothing reads it

    def test_demands(self):
        found = sass.demands(self.copy, GPU)
        self.assertEqual((found['limit'], found['bytes'], found['stall'], found['slow']), ('memory', 52, 1599, 10))
        self.assertFalse(found['has_barrier'])
        self.assertEqual(found['clocks']['issue'], 8)
        self.assertAlmostEqual(found['clocks']['memory'], 52 * 32 * 4 * 132 * 1.83e9 / 3.35e12)
        self.assertEqual(sass.demands(self.multiply, GPU)['limit'], 'tensor')


class Model(unittest.TestCase):
    def test_resources(self):
        bodies = {'copy_bf16': '.maxntid 256\n.minnctapersm 1', 'multiply_bf16': '.maxntid 128, 1, 1'}
        found = sass_listing.resources_read(TOLD, bodies)
        self.assertEqual(found['copy_bf16'], sass_listing.Resources(33, 1024, 4, 256))
        self.assertEqual(found['multiply_bf16'], sass_listing.Resources(128, 0, 0, 128, True))

    def test_occupancy_by_each_limit(self):
        def warps(registers, shared, threads):
            resources = sass_listing.Resources(registers, 0, 0, threads)
            return sass.warps_resident('copy_bf16', resources, threads // 32, shared, GPU)
        self.assertEqual(warps(33, 0, 256), 48)    # 40 registers are allocated: 1280 a warp, 51 warps, 6 blocks
        self.assertEqual(warps(32, 0, 1024), 64)   # all warps
        self.assertEqual(warps(16, 0, 32), 32)     # blocks
        self.assertEqual(warps(32, 112 << 10, 256), 16) # shared memory: two blocks
        self.assertEqual(warps(168, 200 << 10, 256), 8)

    def test_a_grid_of_few_blocks_leaves_multiprocessors_empty(self):
        resources = sass_listing.Resources(32, 0, 0, 256)
        self.assertEqual(sass.warps_resident('copy_bf16', resources, 4, 0, GPU), 64)
        self.assertEqual(sass.warps_resident('residual_bwd_bf16', resources, 4, 0, GPU), 8) # 256 blocks

    def test_blocks_of_rows_have_the_threads_of_their_launch(self):
        names = ('norm_fwd_bf16', 'residual_drop_fwd_f32', 'norm_bwd_bf16', 'residual_bwd_f32', 'sum_squares_f32',
                 'gelu_fwd_bf16')
        self.assertEqual([sass.launch_warps(name, 256) for name in names], [2, 4, 7, 7, 4, 8])

    def test_copies_to_shared_memory_are_bytes_of_kernels_that_memory_bounds(self):
        code = [sass_listing.Instruction(0, 'LDG.E.128', 'R4, [R2]', False),
                sass_listing.Instruction(16, 'LDGSTS.E.128', '[R1], [R2]', False)]
        self.assertEqual([sum(map(measure, code)) for measure in (sass.global_bytes, sass.register_bytes)], [32, 16])

    def test_one_warp_hides_nothing_and_many_hide_all(self):
        found = {'limit': 'memory', 'stall': 800, 'has_barrier': False,
                 'clocks': {'issue': 100, 'pipe': 50, 'memory': 300, 'tensor': 0, 'fma': 0}}
        expected, max_share = sass.shares_get(found, 4, 8)
        self.assertAlmostEqual(expected, 300 / (300 + 100 + 800))
        self.assertEqual(max_share, 1)
        # the second meets the first at memory in a fourth of the cases, and at the pipe in a twelfth
        self.assertAlmostEqual(sass.shares_get(found, 8, 8)[0], 2 * 300 / (300 * 1.25 + 100 * (1 + 1 / 12) + 800))
        self.assertGreater(sass.shares_get(found, 64, 8)[0], 0.95)

    def test_warps_that_meet_at_a_barrier_are_one_customer(self):
        found = {'limit': 'memory', 'stall': 800, 'has_barrier': True,
                 'clocks': {'issue': 100, 'pipe': 50, 'memory': 300, 'tensor': 0, 'fma': 0}}
        self.assertAlmostEqual(sass.shares_get(found, 8, 8)[0], 600 / (600 + 200 + 800))
        self.assertLess(sass.shares_get(found, 16, 8)[0], sass.shares_get(found | {'has_barrier': False}, 16, 8)[0])

    def test_what_runs_longer_than_the_limit_bounds_the_share(self):
        found = {'limit': 'tensor', 'stall': 0,
                 'clocks': {'issue': 400, 'pipe': 800, 'memory': 0, 'tensor': 400, 'fma': 0}}
        expected, max_share = sass.shares_get(found, 64, 8)
        self.assertEqual(max_share, 0.5)
        self.assertLess(expected, max_share)

    def test_blocks_of_warpgroups_hide_each_other(self):
        found = {'clocks': {'issue': 400, 'pipe': 300, 'tensor': 400, 'in step': 600}}
        def share(n_warps, turns=1e9, is_in_turns=False):
            return sass.warpgroups_share(found, n_warps, 8, turns, is_in_turns)[0]
        self.assertAlmostEqual(share(8), 400 / (400 + 600)) # one block hides nothing
        self.assertAlmostEqual(share(16), 2 * 800 / (2 * 1000 + 800))
        self.assertAlmostEqual(share(8, is_in_turns=True), 2 * 400 / (1000 + 400)) # two warpgroups, as if two blocks
        self.assertAlmostEqual(share(8, turns=10), 800 / (2 * 1000 + sass.BLOCK_CLOCKS / 10))
        self.assertGreater(share(1000), 0.98)

    def test_turns_of_a_block_follow_the_cuts(self):
        self.assertEqual(sass.block_turns('attention_wgmma_fwd_128_bf16'), (4096 + 128) / 2 / 128)
        self.assertEqual(sass.block_turns('attention_wgmma_fwd_64_bf16'), (1024 + 128) / 2 / 64)
        self.assertEqual(sass.block_turns('attention_wgmma_dkv_64_bf16'), (1024 + 64) / 2 / 64)
        self.assertEqual(sass.diagonal_get('attention_wgmma_dkv_64_bf16'), 1 + 64 / 1024)
        self.assertEqual(sass.block_turns('attention_wgmma_dq_64_bf16'), (1024 + 64) / 2 / 64)
        self.assertEqual(sass.diagonal_get('attention_wgmma_dq_64_bf16'), 1 + 64 / 1024)
        self.assertEqual(sass.diagonal_get('attention_wgmma_dq_128_bf16'), 1 + 128 / 4096)
        self.assertEqual(sass.diagonal_get('attention_wgmma_fwd_64_bf16'), 1 + 128 / 1024)

    def test_a_step_at_all_limits_has_the_products_share(self):
        def share(n_head_products, products=1.0):
            return sass.step_reckon(lambda kernel: 1, GPU, n_head_products, products, {'gelu_fwd_bf16': 0})
        parts, whole = share(3)
        self.assertLess(whole, 1) # attention's executed products are nine, of which six are necessary
        attention = sum(ns for name, ns in parts.items() if name.startswith('attention'))
        self.assertAlmostEqual(parts['products of layers'] * MODEL_ATTENTION / attention, 1)
        self.assertGreater(whole, share(4)[1])
        self.assertAlmostEqual(share(3, 0.5)[0]['products of layers'], 2 * parts['products of layers'])

    def test_attention_beside_a_gpu_counts_the_same_operations(self):
        products = {name: n for name, (_, n) in sass.ATTENTION.items()}
        made_twice = 2  # scores and slopes, by both kernels of the backward half
        necessary = {'forward': products['forward'], 'backward': products['dq'] + products['dk, dv'] - made_twice}
        self.assertEqual({part: n for part, (n, _) in sass.ATTENTION_MEASURED.items()}, necessary)
        peak = GPU['tensor_flops'] * GPU['multiprocessors'] * GPU['clock_hz']
        for part, reckoned, measured, ns in sass.attention_beside(sass.step_reckon(lambda kernel: 1, GPU, 3)[0]):
            self.assertLess(reckoned, peak)  # the diagonal's masked halves, and scores made again
            product = sass.MODEL['layers'] * sass.MODEL['width'] * sass.MODEL['seq_len']  # operations of a token
            self.assertAlmostEqual(measured * ns / 1e9 / product, necessary[part], msg=part)

    def test_changes_shorten_the_step_and_move_no_work(self):
        rows = sass.changes_reckon(lambda kernel: 0.5, GPU)
        self.assertEqual(len(rows), len(sass.CHANGES) + 2)
        self.assertEqual(rows[0][1:], (sum(sass.step_reckon(lambda kernel: 0.5, GPU, 3)[0].values()),
                                       sass.step_reckon(lambda kernel: 0.5, GPU, 3)[1]))
        for (_, before_ns, before), (_, ns, share) in zip(rows, rows[1:]):
            self.assertLess(ns, before_ns)
            self.assertAlmostEqual(ns * share, before_ns * before)  # the least time is that of the same operations
        left = dict(sass.LAYER_BYTES)
        for _, more, _ in sass.CHANGES:
            for kernel, n in more.items():
                left[kernel] = left.get(kernel, 0) + n
        self.assertTrue(all(n >= 0 for n in left.values()), left)

    def test_gelu_in_its_product_and_choices_are_the_first_changes(self):
        rows, fused = sass.changes_reckon(lambda kernel: 0.5, GPU), sass.layer_bytes_with(sass.GELU_FUSION)
        self.assertEqual(fused['gelu_fwd_bf16'], 0)
        self.assertEqual(sum(sass.LAYER_BYTES.values()) - sum(fused.values()), 8)  # GELU's input is not read again
        for row, factor in ((1, 1), (2, sass.CHOICES)):
            parts, share = sass.step_reckon(lambda kernel: 0.5, GPU, 3, sass.PRODUCTS * factor, fused)
            self.assertEqual(rows[row][1:], (sum(parts.values()), share))

    def test_shared_memory_follows_the_launches(self):
        self.assertEqual(sass.launch_shared_bytes('attention_wgmma_fwd_128_bf16'), 225 << 10)
        self.assertEqual(sass.launch_shared_bytes('attention_wgmma_dq_128_bf16'), 225 << 10)
        self.assertEqual(sass.launch_shared_bytes('attention_wgmma_dq_64_bf16'), 49 << 10)
        self.assertEqual(sass.launch_shared_bytes('attention_mma_dkv_64_bf16'), 49 << 10)
        self.assertEqual(sass.launch_shared_bytes('attention_mma_more_fwd_256_bf16'), 64 << 10)
        self.assertEqual(sass.launch_shared_bytes('attention_dkv_sum_bf16'), 256)


if __name__ == '__main__':
    unittest.main()
