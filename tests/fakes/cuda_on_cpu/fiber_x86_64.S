# SPDX-License-Identifier: Apache-2.0
# Switching stacks under the System V calling convention: what a call must keep is pushed, the stacks are exchanged, and
# the other side's is popped. fiber_init lays out a stack as if its owner had been here once before.
    .text
    .globl fiber_switch
    .type fiber_switch, @function
fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size fiber_switch, .-fiber_switch

    .globl fiber_init
    .type fiber_init, @function
fiber_init:
    leaq (%rsi,%rdx), %rax
    andq $-16, %rax
    movq $0, -8(%rax)
    movq %rcx, -16(%rax)
    movq $0, -24(%rax)
    leaq -64(%rax), %rax
    movq %rax, (%rdi)
    ret
    .size fiber_init, .-fiber_init
    .section .note.GNU-stack,"",@progbits
