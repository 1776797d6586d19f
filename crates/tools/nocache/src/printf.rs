//! Variadic calls. They are forwarded to the variants with a `va_list` in `stdio.rs`; building the list takes ten lines of assembly,
//! because stable Rust cannot. x86-64 only: elsewhere their output is seen at the stream's next call.

use core::arch::naked_asm;

use crate::stdio;

/// Defines `$name`, with `$fixed` bytes of registers before the list: it calls `$target` with the list in register `$list`.
macro_rules! listed {
    ($($name:ident, $fixed:literal, $list:literal, $target:path;)*) => { $(
        #[allow(missing_docs, clippy::missing_safety_doc)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(dead_code)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            // The ABI defines a va_list: two offsets, the stack arguments, the register area.
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 0xd8",
                ".cfi_adjust_cfa_offset 0xd8",
                "mov [rsp + 0x20], rdi",
                "mov [rsp + 0x28], rsi",
                "mov [rsp + 0x30], rdx",
                "mov [rsp + 0x38], rcx",
                "mov [rsp + 0x40], r8",
                "mov [rsp + 0x48], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 0x50], xmm0",
                "movaps [rsp + 0x60], xmm1",
                "movaps [rsp + 0x70], xmm2",
                "movaps [rsp + 0x80], xmm3",
                "movaps [rsp + 0x90], xmm4",
                "movaps [rsp + 0xa0], xmm5",
                "movaps [rsp + 0xb0], xmm6",
                "movaps [rsp + 0xc0], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $fixed),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 0xe0]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 0x20]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {target}",
                "add rsp, 0xd8",
                ".cfi_adjust_cfa_offset -0xd8",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    )* };
}

listed! {
    printf, "8", "rsi", stdio::vprintf;
    fprintf, "16", "rdx", stdio::vfprintf;
    __printf_chk, "16", "rdx", stdio::__vprintf_chk;
    __fprintf_chk, "24", "rcx", stdio::__vfprintf_chk;
    scanf, "8", "rsi", stdio::vscanf;
    fscanf, "16", "rdx", stdio::vfscanf;
    __isoc99_scanf, "8", "rsi", stdio::__isoc99_vscanf;
    __isoc99_fscanf, "16", "rdx", stdio::__isoc99_vfscanf;
}
