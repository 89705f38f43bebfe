#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nonet_fuzzing::schema(bytes));
