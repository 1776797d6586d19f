//! Compares which file each built-in policy evicts next: `cargo run -p policy --example evict`.

use policy::{BUILT_IN, FileId, Record};

fn main() -> Result<(), policy::PolicyError> {
    for name in BUILT_IN {
        let mut policy = policy::by_name(name)?;
        for file in 1..=3 {
            policy.insert(Record { file: FileId(file), size: 4096, last_open_s: file as u32, opens: 1 });
        }
        // File 1 is the oldest, file 2 is opened often, file 3 was opened last.
        for now_s in 10..20 {
            policy.touch(FileId(2), now_s);
        }
        policy.touch(FileId(1), 20);
        policy.touch(FileId(3), 21);
        let victim = policy.victim(3, &mut |_| true);
        println!("{name}: evicts file {}", victim.map_or(0, |file| file.0));
    }
    Ok(())
}
