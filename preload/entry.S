/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's entries: for each function of the driver a jump to the real one, and hooks for three calls of the loader.
 *
 * An entry does not know its function's arguments, so it leaves every register and the stack unchanged: it jumps
 * through the function's slot. While the slot is empty, lade_shim_resolve asks lade_shim_function for the address, with
 * all registers that can carry arguments saved around the call.
 *
 * Entries are weak: if the shim has its own function of that name (hooks.h), the linker takes that one.
 *
 * dlopen and dlsym search on behalf of the object that contains their return address. So the shim's versions must not
 * call them: they change arguments where needed, and jump, so that the return address stays the caller's. dlmopen
 * searches on behalf of its caller as dlopen does.
 */
#if defined(__x86_64__)

  .macro BEGIN name
  .type \name, %function
\name:
  .cfi_startproc
  endbr64
  .endm

  .macro ENTRY name, number
  .weak \name
  BEGIN \name
  movq lade_shim_slots + 8 * \number(%rip), %r11
  testq %r11, %r11
  jz 1f
  jmpq *%r11
1:
  movl $\number, %r11d
  jmp lade_shim_resolve
  .cfi_endproc
  .size \name, . - \name
  .endm

  /* name(first, second): jump to *target(look(first, second), second) */
  .macro LOADER name, look, target
  .globl \name
  BEGIN \name
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $16, %rsp
  movq %rsi, -8(%rbp)
  call \look
  movq %rax, %rdi
  movq -8(%rbp), %rsi
  leave
  .cfi_def_cfa %rsp, 8
  jmpq *\target(%rip)
  .cfi_endproc
  .size \name, . - \name
  .endm

  /* name(space, path, flags): look(&space, &path), which may change both; jump to *target(space, path, flags) */
  .macro SPACE_LOADER name, look, target
  .globl \name
  BEGIN \name
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $32, %rsp
  movq %rdi, -8(%rbp)
  movq %rsi, -16(%rbp)
  movq %rdx, -24(%rbp)
  leaq -8(%rbp), %rdi
  leaq -16(%rbp), %rsi
  call \look
  movq -8(%rbp), %rdi
  movq -16(%rbp), %rsi
  movq -24(%rbp), %rdx
  leave
  .cfi_def_cfa %rsp, 8
  jmpq *\target(%rip)
  .cfi_endproc
  .size \name, . - \name
  .endm

  .text
  BEGIN lade_shim_resolve
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  subq $192, %rsp
  movq %rdi, -8(%rbp)
  movq %rsi, -16(%rbp)
  movq %rdx, -24(%rbp)
  movq %rcx, -32(%rbp)
  movq %r8, -40(%rbp)
  movq %r9, -48(%rbp)
  movq %rax, -56(%rbp)
  .irp n, 0, 1, 2, 3, 4, 5, 6, 7
  movups %xmm\n, -192 + 16 * \n(%rbp)
  .endr
  movl %r11d, %edi
  call lade_shim_function
  movq %rax, %r11
  .irp n, 0, 1, 2, 3, 4, 5, 6, 7
  movups -192 + 16 * \n(%rbp), %xmm\n
  .endr
  movq -56(%rbp), %rax
  movq -48(%rbp), %r9
  movq -40(%rbp), %r8
  movq -32(%rbp), %rcx
  movq -24(%rbp), %rdx
  movq -16(%rbp), %rsi
  movq -8(%rbp), %rdi
  leave
  .cfi_def_cfa %rsp, 8
  jmpq *%r11
  .cfi_endproc
  .size lade_shim_resolve, . - lade_shim_resolve

#elif defined(__aarch64__)

  .macro BEGIN name
  .type \name, %function
\name:
  .cfi_startproc
  hint #34 /* bti c */
  .endm

  .macro ENTRY name, number
  .weak \name
  BEGIN \name
  adrp x16, lade_shim_slots + 8 * \number
  ldr x17, [x16, #:lo12:lade_shim_slots + 8 * \number]
  cbz x17, 1f
  br x17
1:
  mov w17, #\number
  b lade_shim_resolve
  .cfi_endproc
  .size \name, . - \name
  .endm

  .macro LOADER name, look, target
  .globl \name
  BEGIN \name
  stp x29, x30, [sp, #-32]!
  .cfi_def_cfa_offset 32
  .cfi_offset x29, -32
  .cfi_offset x30, -24
  mov x29, sp
  str x1, [sp, #16]
  bl \look
  ldr x1, [sp, #16]
  ldp x29, x30, [sp], #32
  .cfi_def_cfa_offset 0
  adrp x16, \target
  ldr x17, [x16, #:lo12:\target]
  br x17
  .cfi_endproc
  .size \name, . - \name
  .endm

  .macro SPACE_LOADER name, look, target
  .globl \name
  BEGIN \name
  stp x29, x30, [sp, #-48]!
  .cfi_def_cfa_offset 48
  .cfi_offset x29, -48
  .cfi_offset x30, -40
  mov x29, sp
  stp x0, x1, [sp, #16]
  str x2, [sp, #32]
  add x0, sp, #16
  add x1, sp, #24
  bl \look
  ldp x0, x1, [sp, #16]
  ldr x2, [sp, #32]
  ldp x29, x30, [sp], #48
  .cfi_def_cfa_offset 0
  adrp x16, \target
  ldr x17, [x16, #:lo12:\target]
  br x17
  .cfi_endproc
  .size \name, . - \name
  .endm

  .text
  BEGIN lade_shim_resolve
  stp x29, x30, [sp, #-224]!
  .cfi_def_cfa_offset 224
  .cfi_offset x29, -224
  .cfi_offset x30, -216
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
  mov w0, w17
  bl lade_shim_function
  mov x17, x0
  ldp q6, q7, [sp, #192]
  ldp q4, q5, [sp, #160]
  ldp q2, q3, [sp, #128]
  ldp q0, q1, [sp, #96]
  ldr x8, [sp, #80]
  ldp x6, x7, [sp, #64]
  ldp x4, x5, [sp, #48]
  ldp x2, x3, [sp, #32]
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #224
  .cfi_def_cfa_offset 0
  br x17
  .cfi_endproc
  .size lade_shim_resolve, . - lade_shim_resolve

#endif

  .hidden lade_shim_slots
  .hidden lade_shim_function
  .hidden lade_shim_look_open
  .hidden lade_shim_look_space
  .hidden lade_shim_look_symbol
  .hidden lade_shim_dlopen
  .hidden lade_shim_dlmopen
  .hidden lade_shim_dlsym

  LOADER dlopen, lade_shim_look_open, lade_shim_dlopen
  SPACE_LOADER dlmopen, lade_shim_look_space, lade_shim_dlmopen
  LOADER dlsym, lade_shim_look_symbol, lade_shim_dlsym

  .section .note.GNU-stack, "", %progbits
  .text
