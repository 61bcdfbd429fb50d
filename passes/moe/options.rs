//! The pass's options as text: `moe(experts=8, top=2, every=2)`. The flag `--moe` takes the same options.

use super::{Affinity, ExpertStart, Gates, GroupLimit, Moe, Routing};
use crate::arguments::{Arguments, value_of};

pub(super) fn parse(arguments: &mut Arguments) -> Result<Moe, String> {
    let preset = arguments.word(&[
        (Routing::SWITCH, "switch"),
        (Routing::GSHARD, "gshard"),
        (Routing::EXPERT_CHOICE, "expert-choice"),
    ]);
    let mut routing = preset.unwrap_or_default();
    let experts = arguments.value("experts", 0)?;
    if experts == 0 {
        return Err("give the number of experts: experts=8".into());
    }
    if let Some(top) = arguments.take("top") {
        routing.top = value_of("top", &top)?;
        routing.gates = if routing.top == 1 { Gates::Probabilities } else { Gates::Renormalized };
    }
    match arguments.take("renormalize").as_deref() {
        None => {}
        Some("on") => routing.gates = Gates::Renormalized,
        Some("off") => routing.gates = Gates::Probabilities,
        Some(text) => {
            return Err(format!("`{text}` is not a value of `renormalize`; the values are on and off"));
        }
    }
    match arguments.take("capacity").as_deref() {
        None => {}
        Some("none") => routing.capacity = None,
        Some(text) => routing.capacity = Some(value_of("capacity", text)?),
    }
    if let Some(text) = arguments.take("groups") {
        let (taken, groups) = text.split_once('/').ok_or("write groups as groups=TAKEN/ALL, such as 1/2")?;
        let [taken, groups] = [taken, groups].map(|text| value_of("groups", text));
        routing.limit = Some(GroupLimit { taken: taken?, groups: groups? });
    }
    routing.random_second |= arguments.flag("random-second");
    if arguments.flag("sigmoid") {
        routing.affinity = Affinity::Sigmoid;
    }
    routing.bias = arguments.value("bias", routing.bias)?;
    routing.balance = arguments.value("balance", balance_beside(routing.bias, &routing))?;
    routing.z = arguments.value("z", routing.z)?;
    routing.jitter = arguments.value("jitter", routing.jitter)?;
    let moe = Moe {
        experts,
        every: arguments.value("every", 1)?,
        hidden: arguments.take("hidden").map(|text| value_of("hidden", &text)).transpose()?,
        start: arguments
            .word(&[(ExpertStart::Copies, "copies"), (ExpertStart::Fresh, "fresh")])
            .unwrap_or_default(),
        noise: arguments.value("noise", 0.0)?,
        shared: arguments.flag("shared"),
        seed: arguments.value("seed", 0)?,
        routing,
    };
    moe.check().map(|()| moe)
}

/// Returns the factor of the balance loss if none is given: with a bias there is no balance loss.
fn balance_beside(bias: f64, preset: &Routing) -> f64 {
    if bias > 0.0 { 0.0 } else { preset.balance }
}

pub(super) fn print(moe: &Moe, arguments: &mut Arguments) {
    let Moe { experts, every, hidden, start, noise, shared, seed, routing } = moe;
    let mut preset = Routing::default();
    for (known, word) in [(Routing::GSHARD, "gshard"), (Routing::EXPERT_CHOICE, "expert-choice")] {
        if known.random_second == routing.random_second && known.by_experts == routing.by_experts {
            arguments.push("", word);
            preset = known;
        }
    }
    arguments.push("experts", experts);
    let Routing { top, gates, capacity, limit, affinity, bias, balance, z, jitter, .. } = routing;
    if (top, gates) != (&preset.top, &preset.gates) {
        arguments.push("top", top);
        arguments.push("renormalize", if *gates == Gates::Renormalized { "on" } else { "off" });
    }
    match capacity {
        _ if *capacity == preset.capacity => {}
        None => arguments.push("capacity", "none"),
        Some(capacity) => arguments.push("capacity", capacity),
    }
    if let Some(limit) = limit {
        arguments.push("groups", format!("{}/{}", limit.taken, limit.groups));
    }
    arguments.push_flag("sigmoid", *affinity == Affinity::Sigmoid);
    arguments.push_unless(&0.0, "bias", bias);
    arguments.push_unless(&balance_beside(*bias, &preset), "balance", balance);
    arguments.push_unless(&preset.z, "z", z);
    arguments.push_unless(&preset.jitter, "jitter", jitter);
    arguments.push_unless(&1, "every", every);
    if let Some(hidden) = hidden {
        arguments.push("hidden", hidden);
    }
    arguments.push_flag("fresh", *start == ExpertStart::Fresh);
    arguments.push_unless(&0.0, "noise", noise);
    arguments.push_flag("shared", *shared);
    arguments.push_unless(&0, "seed", seed);
}

#[cfg(test)]
mod tests {
    use crate::Pipeline;
    use crate::registry::Pass;

    #[test]
    fn what_is_printed_is_read_back() {
        for text in [
            "moe(experts=8)",
            "moe(experts=4, top=1, capacity=1.5, z=0.001)",
            "moe(switch, experts=4, jitter=0.1, every=2)",
            "moe(gshard, experts=4, capacity=none)",
            "moe(expert-choice, experts=4, capacity=1, hidden=64, fresh, shared, seed=7)",
            "moe(experts=4, top=3, renormalize=off, noise=0.01, balance=0)",
            "moe(experts=8, groups=2/4)",
            "moe(experts=8, sigmoid, bias=0.001)",
            "moe(gshard, experts=4, bias=0.01, balance=0.0001)",
        ] {
            let pipeline: Pipeline = text.parse().expect(text);
            let [Pass::Moe(moe)] = &pipeline.passes[..] else { panic!("{pipeline}") };
            let again: Pipeline = pipeline.to_string().parse().expect("it is a pipeline");
            assert_eq!(again.passes, [Pass::Moe(moe.clone())], "{text} -> {pipeline}");
        }
    }

    #[test]
    fn options_without_a_meaning_are_refused() {
        for (text, error) in [
            ("moe(top=2)", "give the number of experts"),
            ("moe(experts=2, top=3)", "top=3 is more than the 2 experts"),
            ("moe(experts=4, capacity=0)", "capacity=0 drops every token"),
            ("moe(experts=4, top=1, random-second)", "random-second takes top=2"),
            ("moe(experts=4, every=0)", "every=0"),
            ("moe(experts=4, groups=1/3)", "groups=1/3 does not divide 4 experts"),
            ("moe(experts=4, groups=1/4)", "groups=1/4 leaves 1 experts, and top=2"),
            ("moe(experts=4, groups=2)", "groups=TAKEN/ALL"),
            ("moe(experts=4, renormalize=maybe)", "on and off"),
            ("moe(experts=4, bias=-1)", "bias=-1 is not allowed"),
            ("moe(expert-choice, experts=4, bias=0.1)", "expert-choice takes no bias"),
            ("moe(experts=4, sigmoid, z=0.1)", "sigmoid has none"),
        ] {
            let refused = text.parse::<Pipeline>().expect_err(text).to_string();
            assert!(refused.contains(error), "{text}: {refused}");
        }
    }
}
