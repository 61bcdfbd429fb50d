//! The program that processes compile from random flags, beside the program of threads.

use crate::{TRAINYARD, mpirun};
use testing::random_flags::{CLUSTERS, RandomFlags};
use testing::workplace::Workplace;

/// A mesh without an axis of data ranks gets one from the launcher, as its outermost.
#[test]
fn processes_compile_the_program_of_threads() {
    let mut compared = 0;
    for RandomFlags { model, mesh, flags, .. } in (0..60).map(RandomFlags::of) {
        let (processes, launched, threads) = match mesh {
            "dp=2" => (2, "", "--mesh dp=2"),
            "dp=4" => (4, "", "--mesh dp=4"),
            "tp=2,dp=2" => (4, "--mesh tp=2", "--mesh dp=2,tp=2"),
            "pp=2,dp=2" => (4, "--mesh pp=2", "--mesh dp=2,pp=2"),
            "pp=3" => (3, "--mesh pp=3", "--mesh pp=3"),
            _ => continue,
        };
        let place = Workplace::new(TRAINYARD);
        CLUSTERS.iter().for_each(|(file, text)| place.write(file, text.as_bytes()));
        let command = |own: &str, to: &str| {
            let flags = flags.replace(&format!("--mesh {mesh}"), own);
            format!("compile testdata/{model}.onnx {flags} -o run --force --dump {to}")
        };
        let ranks: Vec<String> = (0..processes).map(|rank| format!("rank-{rank}")).collect();
        let commands: Vec<String> = ranks.iter().map(|rank| command(launched, rank)).collect();
        let of_processes = mpirun(&place, 1, &commands.join(" : ")).output().expect("the launcher starts");
        let of_threads = place.run(&command(threads, "threads"));
        let (text, is_compiled) =
            (String::from_utf8_lossy(&of_processes.stderr), of_threads.status.success());
        assert_eq!(of_processes.status.success(), is_compiled, "{}: {text}", commands[0]);
        if is_compiled {
            compared += 1;
            let programs = place.dumped("threads");
            assert!(ranks.iter().all(|rank| place.dumped(rank) == programs), "{}", commands[0]);
        }
    }
    assert!(compared >= 8, "{compared} programs are compared");
}
