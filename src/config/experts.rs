//! Mixtures of experts: the feed-forward blocks that become mixtures, and the routing of tokens.

use clap::Args;
use passes::Pipeline;
use passes::moe::Moe;
use passes::registry::Pass;
use serde::{Serialize, Serializer};

/// Flags of mixtures of experts.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
#[command(next_help_heading = "Experts")]
#[serde(rename_all = "kebab-case")]
pub struct Experts {
    /// Turn feed-forward blocks into mixtures of experts: experts=N, then top=K, every=N (of N blocks the last), hidden=N, capacity=X or
    /// none, balance=X, bias=X, z=X, jitter=X, noise=X, groups=L/N, renormalize=on or off, sigmoid, fresh, shared, random-second, or one of
    /// switch, gshard, expert-choice
    #[arg(long, value_name = "KEY=X,…", value_parser = parse)]
    #[serde(serialize_with = "serialize", skip_serializing_if = "Option::is_none")]
    pub moe: Option<Moe>,
}

impl Experts {
    /// The pass that these flags ask for, which draws from a seed.
    pub fn pass(&self, seed: u64) -> Option<Moe> {
        self.moe.clone().map(|moe| Moe { seed, ..moe })
    }
}

fn parse(text: &str) -> Result<Moe, String> {
    let pipeline: Pipeline = format!("moe({text})").parse()?;
    match &pipeline.passes[..] {
        [Pass::Moe(moe)] => Ok(moe.clone()),
        _ => Err(format!("`{text}` has options of several passes")),
    }
}

/// The text that [`parse`] reads.
fn serialize<S: Serializer>(moe: &Option<Moe>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = moe.clone().map(|moe| Pass::from(moe).to_string()).unwrap_or_default();
    serializer.serialize_str(text.trim_start_matches("moe(").trim_end_matches(')'))
}
