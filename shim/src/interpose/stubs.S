// SPDX-License-Identifier: Apache-2.0
//
// dlsym and dlvsym. Written by hand because they must end in a jump: libc reads its caller from the return address, and
// a call from here would change what RTLD_NEXT and RTLD_DEFAULT mean for the program. No compiler flag can undo this.
#if !defined(__x86_64__)
#error "the interposer's stubs are written for x86-64 only"
#endif

    .text

    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov 24(%rsp), %rdx          // the caller
    call gcr_look_up
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %rax, %rax
    jz 1f
    jmp *%rax
1:  mov %rdx, %rax
    ret
    .cfi_endproc
    .size dlsym, . - dlsym

    .globl dlvsym
    .type dlvsym, @function
dlvsym:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    mov 24(%rsp), %rcx          // the caller
    call gcr_look_up_version
    mov %rdx, %rcx
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %rax, %rax
    jz 1f
    jmp *%rax
1:  mov %rcx, %rax
    ret
    .cfi_endproc
    .size dlvsym, . - dlvsym

    .section .note.GNU-stack, "", @progbits
