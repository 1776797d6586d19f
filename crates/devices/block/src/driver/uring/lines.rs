//! Cache lines of memory that a device is about to write.
//!
//! The disk of a virtual machine is carried out by other processors of the host, which write what was read as any program would. Each line
//! that this processor has looked at has to be taken from it first, and they wait for that, though with many requests at once they are
//! what all wait for. This one can put its lines out beforehand, of its own accord and without waiting: nothing is lost with them, since
//! they are about to be written (decisions/36). A device that this machine's processors carry out, as a loop device, had better find them
//! where they are.
#![expect(unsafe_code, reason = "an instruction that Rust has no name for")]

/// Of longer reads the lines are gone before they come back.
const MOST: u32 = 64 << 10;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: u64 = 64;

/// Whether [`put_out`] is worth it: there is the instruction, and the processor is a virtual one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn are_wanted_elsewhere() -> bool {
    /// CPUID function 1, ECX.
    const HYPERVISOR: u32 = 1 << 31;
    can_be_put_out() && std::arch::x86_64::__cpuid(1).ecx & HYPERVISOR != 0
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn can_be_put_out() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// CPUID function 7, EBX.
    const CLFLUSHOPT: u32 = 1 << 23;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & CLFLUSHOPT != 0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) fn are_wanted_elsewhere() -> bool {
    false
}

/// Leaves the lines of this memory to whoever writes them next. What is in it stays as it is.
///
/// # Safety
/// It is mapped, and the processor has the instruction, as [`are_wanted_elsewhere`] says.
#[inline(always)]
pub(super) unsafe fn put_out(address: u64, bytes: u32) {
    if bytes > MOST {
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (address & !(LINE - 1)..address + u64::from(bytes)).step_by(LINE as usize) {
        // SAFETY: as a read of that memory.
        unsafe { std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod test {
    use super::*;

    #[test]
    fn what_was_written_stays() {
        if !can_be_put_out() {
            println!("SKIP: this processor has no CLFLUSHOPT");
            return;
        }
        let mut memory = vec![0_u8; 3 * 4096];
        for (from, bytes) in [(0, 4096), (1, 1), (63, 2), (511, 8000), (12_287, 1), (5, 0)] {
            let value = bytes as u8 | 1;
            memory[from..from + bytes].fill(value);
            let before = memory.clone();
            // SAFETY: that many are there behind it.
            unsafe { put_out(memory.as_ptr() as u64 + from as u64, bytes as u32) };
            assert_eq!(memory, before, "{bytes} bytes from {from}");
        }
    }
}
