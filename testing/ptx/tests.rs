//! Small kernels in PTX: correct kernels, and a kernel for each fault that is found.

use super::machine::{self, Launch, Schedule};
use super::memory::Region;
use super::parse::parse;

/// The address of the operand.
const AT: u64 = 0x1000;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Forward, Schedule::Backward, Schedule::Turns, Schedule::Random(3)];

/// Returns a kernel that gets the address of its operand in `%rd1`, and the number of the thread in `%r1`.
fn kernel(before: &str, body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n{before}\n.visible .entry test(\n.param .u64 .ptr .align 1 test_param_0\n)\n\
         .maxntid 64\n{{\n.reg .pred %p<4>;\n.reg .b16 %rs<4>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.shared .align 16 .b8 held[512];\n\
         ld.param.b64 %rd8, [test_param_0];\ncvta.to.global.u64 %rd1, %rd8;\nmov.u32 %r1, %tid.x;\n{body}\nret;\n}}\n"
    )
}

/// Returns the numbers that a kernel leaves, one for each of 64 threads, in every order. Before the run, byte `i` of its operand is
/// `i`.
fn run_with(before: &str, body: &str) -> Result<Vec<u32>, String> {
    let code = parse(&kernel(before, body), "test")?;
    let launch = Launch { grid: [1; 3], threads: 64, parameters: &[AT], most_steps: 10_000 };
    let mut results = Vec::new();
    for schedule in SCHEDULES {
        let regions = vec![Region::new(AT, (0..=255).collect())];
        let run = machine::run(&code, &launch, regions, schedule, None)?;
        let words = run.regions[0].bytes.chunks_exact(4);
        results
            .push(words.map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect());
    }
    assert!(results.iter().all(|result| *result == results[0]), "{body} depends on the order");
    Ok(results.swap_remove(0))
}

fn run(body: &str) -> Result<Vec<u32>, String> {
    run_with("", body)
}

/// Asserts that a kernel fails with this in its error.
fn assert_fails(body: &str, part: &str) {
    let error = run(body).expect_err("it is wrong");
    assert!(error.contains(part), "`{part}` is not in `{error}`");
}

/// Lets each thread store `%r2` at its place.
const STORE: &str = "mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.b32 [%rd3], %r2;";

/// Lets each thread write its number to shared memory. `%r5` is the address of the number of a thread of the other warp.
const SHARE: &str = "shl.b32 %r3, %r1, 2;\nmov.u32 %r4, held;\nadd.s32 %r4, %r4, %r3;\nst.shared.b32 [%r4], %r1;\n\
                     xor.b32 %r5, %r3, 128;";

#[test]
fn threads_compute_and_store() {
    let numbers = run(&format!("mad.lo.s32 %r2, %r1, 3, 1;\n{STORE}")).expect("it is right");
    assert_eq!(numbers, (0..64).map(|thread| 3 * thread + 1).collect::<Vec<u32>>());
}

#[test]
fn lanes_part_and_meet_again() {
    let body = "mov.b32 %r2, 1;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bra $L__BB0_2;\nmov.b32 %r2, 2;\n$L__BB0_2:\n\
                shfl.sync.bfly.b32 %r3|%p2, %r2, 16, 31, -1;\nadd.s32 %r2, %r2, %r3;";
    let numbers = run(&format!("{body}\n{STORE}")).expect("it is right");
    assert_eq!((numbers[0], numbers[20], numbers[40]), (3, 3, 4));
}

#[test]
fn a_wait_for_the_block_orders_its_threads() {
    let numbers =
        run(&format!("{SHARE}\nbar.sync 0;\nld.shared.b32 %r2, [%r5];\n{STORE}")).expect("it is right");
    assert_eq!((numbers[0], numbers[63]), (32, 31));
    assert_fails(
        &format!("{SHARE}\nld.shared.b32 %r2, [%r5];\n{STORE}"),
        "shared memory is read, and no thread has written it",
    );
    let later = "bar.sync 0;\nst.shared.b32 [%r4], %r1;\nld.shared.b32 %r2, [%r5];";
    assert_fails(&format!("{SHARE}\n{later}\n{STORE}"), "a race: ");
}

/// Threads of the first warp read the numbers that threads of the second warp overwrite. In some orders the write comes first; in
/// others the reads still get the old numbers.
#[test]
fn a_write_that_does_not_wait_for_readers_is_a_race() {
    let body = format!(
        "{SHARE}\nbar.sync 0;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 ld.shared.b32 %r2, [%r5];\n@!%p1 st.shared.b32 [%r4], 7;\n{STORE}"
    );
    assert_fails(&body, "another thread read there, and no wait lies before the write");
}

#[test]
fn all_threads_of_a_block_come_to_a_barrier() {
    let guarded = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $L__BB0_2;\nbar.sync 0;\n$L__BB0_2:\nmov.b32 %r2, 1;";
    assert_fails(&format!("{guarded}\n{STORE}"), "the block waits, and thread 0 has ended");
    let two = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $L__BB0_2;\nbar.sync 0;\nbra.uni $L__BB0_3;\n$L__BB0_2:\nbar.sync 0;\n$L__BB0_3:\nmov.b32 %r2, 1;";
    assert_fails(&format!("{two}\n{STORE}"), "waits at line");
}

#[test]
fn lanes_that_have_ended_shuffle_nothing() {
    let body = "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $L__BB0_2;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\n$L__BB0_2:\n";
    assert_fails(body, "waits for lanes that have ended");
    let body = "setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $L__BB0_2;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, 15;\n$L__BB0_2:\nmov.b32 %r3, 1;";
    assert_fails(body, "whose mask leaves it out");
    let body =
        "setp.lt.u32 %p1, %r1, 8;\nselp.b32 %r3, 255, -1, %p1;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, %r3;";
    assert_fails(body, "lanes execute an instruction with different masks");
}

#[test]
fn addresses_outside_and_between_numbers_are_found() {
    assert_fails(
        &format!("add.s64 %rd1, %rd1, 4;\n{STORE}"),
        "lies outside of the launch's operands (thread 63 of block 0, line 21",
    );
    assert_fails(&format!("add.s64 %rd1, %rd1, 2;\n{STORE}"), "is not a multiple of the access's bytes");
    assert_fails(
        "mov.u32 %r4, held;\nst.shared.b32 [%r4+512], %r1;",
        "byte 512 lies outside of shared memory",
    );
}

/// Returns a kernel in which thread 0 copies 16 bytes of the operand, from byte 16 on, to shared memory, and stores their first number.
fn copying(bytes: u32, before_load: &str) -> String {
    let copy = "cp.async.cg.shared.global [%r4], [%rd1+16]";
    format!(
        "mov.u32 %r4, held;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra $L__BB0_2;\n{copy}, 16, {bytes};\ncp.async.commit_group;\n\
         {before_load}\nld.shared.b32 %r2, [%r4];\nst.global.b32 [%rd1], %r2;\n$L__BB0_2:"
    )
}

#[test]
fn copies_arrive_where_their_thread_waits() {
    for wait in ["cp.async.wait_group 0;", "cp.async.wait_all;"] {
        assert_eq!(run(&copying(16, wait)).expect("it is right")[0], 0x1312_1110);
        assert_eq!(run(&copying(0, wait)).expect("it is right")[0], 0, "zeros are copied");
    }
    for wait in ["", "cp.async.wait_group 1;"] {
        assert_fails(&copying(16, wait), "is accessed while a copy into it is under way");
    }
    assert_fails(&copying(8, "cp.async.wait_all;"), "a copy of a part of its 16 bytes is not modelled");
    let again = "cp.async.cg.shared.global [%r4], [%rd1+32], 16;\ncp.async.wait_all;";
    assert_fails(&copying(16, again), "is accessed while a copy into it is under way");
    let changed = "st.global.b32 [%rd1+16], 5;\ncp.async.wait_all;";
    assert_fails(&copying(16, changed), "change while a copy of them is under way");
    let never = "mov.u32 %r4, held;\ncp.async.cg.shared.global [%r4], [%rd1], 16;";
    assert_fails(
        &format!("setp.ne.u32 %p1, %r1, 0;\n@%p1 bra $L__BB0_2;\n{never}\n$L__BB0_2:"),
        "the thread ends with copies under way",
    );
}

/// In segments of 8 lanes, lane 3 of each segment gives its number to all lanes of the segment.
#[test]
fn shuffles_keep_to_their_segment() {
    let numbers = run(&format!("shfl.sync.idx.b32 %r2, %r1, 3, 6175, -1;\n{STORE}")).expect("it is right");
    assert_eq!((numbers[0], numbers[7], numbers[8], numbers[63]), (3, 3, 11, 59));
}

#[test]
fn halves_are_joined_and_split() {
    let body = "cvt.u16.u32 %rs1, %r1;\nmov.b32 %r2, {%rs1, 7};\nmov.b32 {_, %rs2}, %r2;\ncvt.u32.u16 %r3, %rs2;\nadd.s32 %r2, %r2, %r3;";
    let numbers = run(&format!("{body}\n{STORE}")).expect("it is right");
    assert_eq!(numbers[5], 5 + (7 << 16) + 7);
}

#[test]
fn functions_are_called() {
    let function = ".func (.param .b32 func_retval0) twice(\n.param .b32 twice_param_0\n)\n{\n.reg .b32 %r<3>;\nld.param.b32 %r1, [twice_param_0];\n\
                    shl.b32 %r2, %r1, 1;\nst.param.b32 [func_retval0], %r2;\nret;\n}\n";
    let body = "{\n.param .b32 param0;\nst.param.b32 [param0], %r1;\n.param .b32 retval0;\ncall.uni (retval0), twice, (param0);\n\
                ld.param.b32 %r2, [retval0];\n}";
    let numbers = run_with(function, &format!("{body}\n{STORE}")).expect("it is right");
    assert_eq!((numbers[5], numbers[63]), (10, 126));
}

#[test]
fn variables_of_the_module_are_read() {
    let table = ".global .align 4 .b32 table[2] = {5, 7};";
    let body = "mov.u64 %rd4, table;\nand.b32 %r2, %r1, 1;\nmul.wide.u32 %rd5, %r2, 4;\nadd.s64 %rd4, %rd4, %rd5;\nld.global.nc.b32 %r2, [%rd4];";
    let numbers = run_with(table, &format!("{body}\n{STORE}")).expect("it is right");
    assert_eq!(numbers[..2], [5, 7]);
}

#[test]
fn a_word_that_is_not_modelled_is_refused_with_its_line() {
    assert_fails("lop3.b32 %r2, %r1, %r1, %r1, 128;", "line 18: `lop3.b32` is not modelled: `lop3.b32 %r2");
    assert_fails("ld.global.L2::128B.b32 %r2, [%rd1];", "is not modelled");
    assert_fails("ld.volatile.global.b32 %r2, [%rd1];", "is not modelled");
    assert_fails("max.s32 %r2, %r1, %r1, %r1;", "`max` is not modelled with 3 operands");
    assert_fails("atom.global.add.u32 %r2, [%rd1], 1;", "is not modelled");
    assert_fails("ld.param.b32 %r2, [test_param_1];", "there is no parameter `test_param_1`");
    assert_fails("bar.sync 1;", "a barrier but the first is not modelled");
    assert_fails("mov.u32 %r2, %clock;", "`%clock`");
}

#[test]
fn a_loop_without_end_is_stopped() {
    assert_fails("$L__BB0_1:\nbra.uni $L__BB0_1;", "does not come to its end");
}
