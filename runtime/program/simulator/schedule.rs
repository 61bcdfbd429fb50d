//! Simulates tasks on queues that share resources: computes the begin and the end of each task.
//!
//! A task begins when the previous task on its queue and all tasks that it waits for have ended. A task of the host's thread also waits for
//! its turn there: the thread runs the tasks of all queues one after the other, in the order in which they could begin. A task first takes
//! its latency, in which it uses no resource. Then it works at the speed that its resources allow: tasks that run at once share a resource
//! max-min fairly (Bertsekas and Gallager, Data Networks, section 6.5.2), as far as they need it.

use smallvec::SmallVec;
use std::collections::VecDeque;

/// A task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// The number of its queue. The tasks of a queue run one after the other in their order.
    pub queue: usize,
    /// The numbers of the tasks that it waits for. Each is smaller than its own number.
    pub waits: SmallVec<[usize; 2]>,
    /// Whether it runs on the host's thread, the only one that runs the functions of all queues.
    pub is_on_host_thread: bool,
    /// Seconds before it starts to work.
    pub latency: f64,
    /// For each resource, the seconds for which the task would use all of it if it ran alone. Alone, the task works for the longest of
    /// these.
    pub uses: SmallVec<[f64; 8]>,
}

/// The time span of a task, in seconds after the first task begins.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// Its begin.
    pub begin: f64,
    /// Its end.
    pub end: f64,
}

impl Span {
    /// Returns the seconds of this span that none of the others covers.
    pub fn uncovered(self, others: impl Iterator<Item = Self>) -> f64 {
        let Self { begin, end } = self;
        let mut others: Vec<Self> = others
            .map(|other| Self { begin: other.begin.max(begin), end: other.end.min(end) })
            .filter(|overlap| overlap.begin < overlap.end)
            .collect();
        others.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        let (mut covered, mut until) = (0.0, begin);
        for Self { begin, end } in others {
            covered += (end - begin.max(until)).max(0.0);
            until = until.max(end);
        }
        end - begin - covered
    }
}

impl Task {
    /// Returns the seconds of its work if it has all resources for itself.
    pub fn alone(&self) -> f64 {
        self.uses.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the share of a resource that it takes at full speed.
    fn share(&self, resource: usize) -> f64 {
        let alone = self.alone();
        if alone > 0.0 { self.uses.get(resource).copied().unwrap_or(0.0) / alone } else { 0.0 }
    }
}

/// A task that has begun.
struct Running {
    task: usize,
    /// The remaining seconds of its latency.
    latency: f64,
    /// The remaining seconds of its work at full speed.
    work: f64,
}

/// Runs the tasks, and returns their spans in the order of the tasks.
///
/// # Panics
/// Panics if a task waits for itself or for a later task.
pub fn run(tasks: &[Task]) -> Vec<Span> {
    let mut spans = vec![Span::default(); tasks.len()];
    let mut queues = Queues::of(tasks);
    let mut running: Vec<Running> = Vec::new();
    let mut now = 0.0;
    loop {
        for task in queues.ready(tasks) {
            spans[task].begin = now;
            running.push(Running { task, latency: tasks[task].latency, work: tasks[task].alone() });
        }
        if running.is_empty() {
            return spans;
        }
        let speeds = speeds(tasks, &running);
        let left =
            |(one, speed): (&Running, &f64)| if one.latency > 0.0 { one.latency } else { one.work / speed };
        let passing = running.iter().zip(&speeds).map(left).fold(f64::INFINITY, f64::min);
        now += passing;
        for (one, speed) in running.iter_mut().zip(&speeds) {
            one.pass(passing, *speed);
        }
        running.retain(|one| {
            let ends = one.latency <= 0.0 && one.work <= 0.0;
            if ends {
                spans[one.task].end = now;
                queues.end(one.task, &tasks[one.task]);
            }
            !ends
        });
    }
}

impl Running {
    fn pass(&mut self, seconds: f64, speed: f64) {
        // A rest that is only a rounding error counts as no work.
        const NOTHING: f64 = 1e-15;
        let spent =
            |left: f64, spent: f64| if left - spent <= NOTHING * left.max(1.0) { 0.0 } else { left - spent };
        if self.latency > 0.0 {
            self.latency = spent(self.latency, seconds);
        } else {
            self.work = spent(self.work, seconds * speed);
        }
    }
}

/// Returns the speeds of tasks that run at once, at most 1. All speeds grow together until a resource is used up. The tasks that need this
/// resource keep their speed, and the others grow further.
fn speeds(tasks: &[Task], running: &[Running]) -> Vec<f64> {
    let works = |one: &Running| one.latency <= 0.0;
    let resources = running.iter().map(|one| tasks[one.task].uses.len()).max().unwrap_or(0);
    let share =
        |one: &Running, resource: usize| if works(one) { tasks[one.task].share(resource) } else { 0.0 };
    let mut speeds = vec![0.0_f64; running.len()];
    let mut grows = vec![true; running.len()];
    let mut free = vec![1.0_f64; resources];
    while grows.contains(&true) {
        let demand = |resource: usize| -> f64 {
            running.iter().zip(&grows).filter(|(_, grows)| **grows).map(|(one, _)| share(one, resource)).sum()
        };
        let demands: Vec<f64> = (0..resources).map(demand).collect();
        let speed = speeds.iter().zip(&grows).find(|(_, grows)| **grows).map_or(1.0, |(speed, _)| *speed);
        let room = free
            .iter()
            .zip(&demands)
            .filter(|(_, demand)| **demand > 0.0)
            .map(|(free, demand)| free / demand);
        let step = room.fold(1.0 - speed, f64::min).max(0.0);
        free.iter_mut().zip(&demands).for_each(|(free, demand)| *free -= step * demand);
        for (index, one) in running.iter().enumerate().filter(|(index, _)| grows[*index]).collect::<Vec<_>>()
        {
            speeds[index] += step;
            let is_full = |resource: usize| free[resource] <= 1e-12 && share(one, resource) > 0.0;
            grows[index] = speeds[index] < 1.0 - 1e-12 && !(0..resources).any(is_full);
        }
    }
    speeds
}

/// The tasks that have not begun, by queue.
struct Queues {
    /// The tasks of each queue in their order, and the number of tasks that have begun.
    queues: Vec<(Vec<usize>, usize)>,
    is_busy: Vec<bool>,
    has_ended: Vec<bool>,
    /// The tasks that wait for the host's thread, in the order in which they could begin. Each blocks its queue.
    line: VecDeque<usize>,
    is_thread_busy: bool,
}

impl Queues {
    fn of(tasks: &[Task]) -> Self {
        let count = tasks.iter().map(|task| task.queue + 1).max().unwrap_or(0);
        let mut queues = vec![(vec![], 0); count];
        for (number, task) in tasks.iter().enumerate() {
            assert!(
                task.waits.iter().all(|&earlier| earlier < number),
                "task {number} waits for a later task"
            );
            queues[task.queue].0.push(number);
        }
        let (is_busy, has_ended) = (vec![false; count], vec![false; tasks.len()]);
        Self { queues, is_busy, has_ended, line: VecDeque::new(), is_thread_busy: false }
    }

    /// Removes the tasks that can begin from their queues, and returns them.
    fn ready(&mut self, tasks: &[Task]) -> Vec<usize> {
        let (mut ready, mut own) = (Vec::new(), Vec::new());
        for ((queue, begun), is_busy) in self.queues.iter_mut().zip(&mut self.is_busy) {
            let Some(&next) = queue.get(*begun).filter(|_| !*is_busy) else { continue };
            if !tasks[next].waits.iter().all(|&earlier| self.has_ended[earlier]) {
                continue;
            }
            (*begun, *is_busy) = (*begun + 1, true);
            if tasks[next].is_on_host_thread {
                own.push(next);
            } else {
                ready.push(next);
            }
        }
        // Tasks that could begin at the same time keep their order in the list.
        own.sort_unstable();
        self.line.extend(own);
        if !self.is_thread_busy
            && let Some(next) = self.line.pop_front()
        {
            self.is_thread_busy = true;
            ready.push(next);
        }
        ready
    }

    fn end(&mut self, number: usize, task: &Task) {
        self.has_ended[number] = true;
        self.is_busy[task.queue] = false;
        if task.is_on_host_thread {
            self.is_thread_busy = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::testing::Choices;
    use smallvec::smallvec;

    fn task(queue: usize, waits: &[usize], latency: f64, uses: &[f64]) -> Task {
        Task { queue, waits: waits.into(), is_on_host_thread: false, latency, uses: uses.into() }
    }

    fn on_host_thread(task: Task) -> Task {
        Task { is_on_host_thread: true, ..task }
    }

    /// Returns the begins and ends, which are exact in these schedules.
    fn schedule(tasks: &[Task]) -> Vec<[f64; 2]> {
        run(tasks).into_iter().map(|span| [span.begin, span.end]).collect()
    }

    #[test]
    fn tasks_of_a_queue_run_one_after_the_other() {
        let tasks = [task(0, &[], 1.0, &[2.0]), task(0, &[], 0.0, &[3.0, 4.0]), task(0, &[], 5.0, &[])];
        assert_eq!(schedule(&tasks), [[0.0, 3.0], [3.0, 7.0], [7.0, 12.0]]);
    }

    #[test]
    fn queues_run_at_once_except_for_waits() {
        let tasks = [
            task(0, &[], 0.0, &[2.0, 0.0]),
            task(1, &[0], 0.0, &[0.0, 5.0]),
            task(0, &[], 0.0, &[3.0, 0.0]),
            task(1, &[], 0.0, &[0.0, 1.0]),
            task(0, &[1], 0.0, &[4.0, 0.0]),
        ];
        assert_eq!(schedule(&tasks), [[0.0, 2.0], [2.0, 7.0], [2.0, 5.0], [7.0, 8.0], [7.0, 11.0]]);
    }

    #[test]
    fn two_tasks_that_need_all_of_a_resource_take_as_long_as_both_in_turn() {
        let tasks = [task(0, &[], 0.0, &[2.0]), task(1, &[], 0.0, &[6.0])];
        // Both run at half speed until the first ends at 4. Then 4 seconds of the second are left.
        assert_eq!(schedule(&tasks), [[0.0, 4.0], [0.0, 8.0]]);
    }

    #[test]
    fn tasks_slow_each_other_only_where_their_resources_meet() {
        // The first two tasks need 0.75 + 0.75 of the first resource, so both run at 2/3. The third needs another resource.
        let tasks = [
            task(0, &[], 0.0, &[3.0, 4.0]),
            task(1, &[], 0.0, &[3.0, 0.0, 4.0]),
            task(2, &[], 0.0, &[0.0, 0.0, 0.0, 5.0]),
        ];
        assert_eq!(schedule(&tasks), [[0.0, 6.0], [0.0, 6.0], [0.0, 5.0]]);
    }

    #[test]
    fn a_task_takes_what_a_slower_task_leaves() {
        // The first two tasks both need all of resource 1, so each runs at half speed. The first then leaves half of resource 0, and the
        // third, which needs all of it, gets that half: max-min fairness.
        let tasks =
            [task(0, &[], 0.0, &[4.0, 4.0]), task(1, &[], 0.0, &[0.0, 4.0]), task(2, &[], 0.0, &[2.0, 0.0])];
        // All three run at half speed until 4. Then the first two have 2 seconds left and share resource 1 until 8.
        assert_eq!(schedule(&tasks), [[0.0, 8.0], [0.0, 8.0], [0.0, 4.0]]);
    }

    #[test]
    fn latency_uses_no_resource() {
        let tasks = [task(0, &[], 3.0, &[1.0]), task(1, &[], 0.0, &[3.0])];
        assert_eq!(schedule(&tasks), [[0.0, 4.0], [0.0, 3.0]]);
    }

    /// A kernel runs at the same time.
    #[test]
    fn functions_of_the_host_run_one_after_the_other_in_the_order_in_which_they_could_begin() {
        let tasks = [
            task(0, &[], 0.0, &[3.0]),
            on_host_thread(task(1, &[], 1.0, &[0.0, 4.0])),
            on_host_thread(task(2, &[0], 0.0, &[0.0, 0.0, 2.0])),
            task(3, &[2], 0.0, &[1.0]),
        ];
        assert_eq!(schedule(&tasks), [[0.0, 3.0], [0.0, 5.0], [5.0, 7.0], [7.0, 8.0]]);
        // The second function of the list could begin before the first one.
        let tasks = [
            task(0, &[], 0.0, &[3.0]),
            on_host_thread(task(1, &[0], 0.0, &[0.0, 1.0])),
            on_host_thread(task(2, &[], 0.0, &[0.0, 4.0])),
            on_host_thread(task(2, &[], 0.0, &[0.0, 4.0])),
        ];
        assert_eq!(schedule(&tasks), [[0.0, 3.0], [4.0, 5.0], [0.0, 4.0], [5.0, 9.0]]);
    }

    /// Returns random tasks on three queues, with up to two waits each. Some are functions of the host.
    fn random_tasks(seed: u64) -> Vec<Task> {
        let mut choices = Choices::new(seed);
        let count = 1 + choices.below(30);
        let tasks = (0..count).map(|number| {
            let waits = (0..choices.below(3)).filter(|_| number > 0).map(|_| choices.below(number.max(1)));
            let waits = waits.collect();
            let mut seconds = || choices.of(&[0.0, 0.0, 1e-6, 0.3, 1.0, 2.5]);
            Task {
                waits,
                is_on_host_thread: number % 5 < 2,
                latency: seconds(),
                uses: smallvec![seconds(), seconds(), seconds()],
                queue: number * 7 % 3,
            }
        });
        tasks.collect()
    }

    #[test]
    fn no_resource_does_more_than_it_can_and_no_task_begins_too_early() {
        for seed in 0..500 {
            let tasks = random_tasks(seed);
            let spans = run(&tasks);
            let end = spans.iter().map(|span| span.end).fold(0.0, f64::max);
            let in_turn: f64 = tasks.iter().map(|task| task.latency + task.alone()).sum();
            assert!(end <= in_turn + 1e-9, "seed {seed}: {end} of {in_turn}");
            for resource in 0..3 {
                let used: f64 = tasks.iter().map(|task| task.uses[resource]).sum();
                assert!(end >= used - 1e-9, "seed {seed}: {used} s of resource {resource} in {end} s");
            }
            for (number, (task, span)) in tasks.iter().zip(&spans).enumerate() {
                assert!(
                    span.end - span.begin >= task.latency + task.alone() - 1e-9,
                    "seed {seed}, task {number}"
                );
                let same_queue = (0..number).filter(|&other| tasks[other].queue == task.queue);
                let before = task.waits.iter().copied().chain(same_queue);
                before
                    .for_each(|other| assert!(spans[other].end <= span.begin, "seed {seed}, task {number}"));
            }
            let functions = (0..tasks.len()).filter(|&number| tasks[number].is_on_host_thread);
            let mut functions: Vec<Span> = functions.map(|number| spans[number]).collect();
            functions.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(a.end.total_cmp(&b.end)));
            let meets = functions.windows(2).any(|pair| pair[1].begin < pair[0].end);
            assert!(!meets, "seed {seed}: two functions of the host at once");
        }
    }

    #[test]
    fn an_empty_list_ends_at_once_and_a_wait_for_a_later_task_panics() {
        assert_eq!(schedule(&[]), Vec::<[f64; 2]>::new());
        let broken = Task { waits: smallvec![1], ..Task::default() };
        let result = std::panic::catch_unwind(|| run(&[broken, Task::default()]));
        assert!(result.is_err());
    }
}
