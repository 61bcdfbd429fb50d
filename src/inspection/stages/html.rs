//! A pipeline as a page: its timetable as a picture, and tables of stages and ranks. The page is one file that loads nothing.

mod chart;

use super::PipelineFacts;
use super::text::shortened;
use chart::Chart;
use ir::timetable::TASK_PHASES;
use ir::units::bytes;
use ir::visible;

const STYLE: &str = include_str!("html/page.css");

impl PipelineFacts {
    /// The page. The title names the model.
    pub fn html(&self, title: &str) -> String {
        let title = format!("Predicted timetable of {}", escaped(title));
        let mut summary = escaped(&self.summary());
        summary[..1].make_ascii_uppercase();
        let lanes = "<p>A rank has a lane for each of its stages, and works in one lane at a time.</p>\n";
        let lanes = if self.interleaves() { lanes } else { "" };
        let (legend, chart) = (self.legend_list(), Chart::of(self).svg());
        let tables = [self.stage_table(), self.rank_table()].concat();
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
             <p>{summary}.</p>\n\
             <p>Times are those of the microbatches of one step; the update is left out. A number in a task is its \
             microbatch. Point at a task, a wait or a transfer to read its times.</p>\n\
             {lanes}{legend}{chart}{tables}</body>\n</html>\n"
        )
    }

    fn legend_list(&self) -> String {
        let square = |class: &str| format!("<rect class=\"{class}\" width=\"26\" height=\"16\"/>");
        let shown = if self.splits_backward() { 3 } else { 2 };
        let phases = TASK_PHASES[..shown].iter().map(|(phase, _)| phase.long_name());
        let mut entries: Vec<(String, &str)> = phases.map(|name| (square(class_of(name)), name)).collect();
        let idle = format!("{}{}", square("ground"), square("idle"));
        entries.push((idle, "idle: the rank waits (bubble)"));
        let arrow = "<path class=\"transfer\" d=\"M1 8H20\"/><path class=\"head\" d=\"M25 8l-7 -4v8z\"/>";
        entries.push((arrow.into(), "transfer to another rank"));
        let entries = entries.into_iter().map(|(shape, name)| {
            let svg = format!("<svg width=\"26\" height=\"16\" aria-hidden=\"true\">{shape}</svg>");
            format!("<li>{svg}{name}</li>\n")
        });
        format!("<ul class=\"legend\">\n{}</ul>\n", entries.collect::<String>())
    }

    fn stage_table(&self) -> String {
        let mut heads = vec!["#stage", "#rank", "#parameters", "#forward", "#backward"];
        if self.splits_backward() {
            heads.push("#weight gradients");
        }
        heads.extend(["#share of the slowest", "#sends to later stages", "first node", "last node"]);
        let row = |(stage, facts): (usize, &super::StageFacts)| {
            let mut cells = facts.numbers(stage);
            cells.extend([&facts.first, &facts.last].map(|origin| shortened(origin)));
            cells
        };
        let rows: Vec<Vec<String>> = self.stages.iter().enumerate().map(row).collect();
        table("Stages", &heads, &rows)
    }

    fn rank_table(&self) -> String {
        let mut heads = vec!["#rank", "stages", "#idle", "#activation sets for backward"];
        if self.splits_backward() {
            heads.push("#for weight gradients");
        }
        heads.extend(["#memory", "of which"]);
        let row = |(rank, facts): (usize, &super::RankFacts)| {
            let stages: Vec<String> = facts.stages.iter().map(u32::to_string).collect();
            let mut cells = vec![rank.to_string(), stages.join(", "), format!("{:.1} %", 100.0 * facts.idle)];
            cells.push(facts.kept_for_backward.to_string());
            cells.extend(facts.kept_for_weight.map(|count| count.to_string()));
            cells.extend([bytes(facts.planned), facts.memory.to_string()]);
            cells
        };
        let rows: Vec<Vec<String>> = self.ranks.iter().enumerate().map(row).collect();
        table("Pipeline ranks", &heads, &rows)
    }
}

/// The class of a phase in the style of the page: the first word of its name.
fn class_of(phase: &str) -> &str {
    phase.split(' ').next().unwrap_or(phase)
}

/// A table. Columns whose heading starts with `#` have numbers.
fn table(title: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    let class = |head: &str| if head.starts_with('#') { " class=\"number\"" } else { "" };
    let head =
        |head: &&str| format!("<th scope=\"col\"{}>{}</th>\n", class(head), head.trim_start_matches('#'));
    let cell = |(head, cell): (&&str, &String)| format!("<td{}>{}</td>", class(head), escaped(cell));
    let row = |row: &Vec<String>| {
        let cells: String = heads.iter().zip(row).map(cell).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let [heads, rows] = [heads.iter().map(head).collect::<String>(), rows.iter().map(row).collect()];
    format!("<h2>{title}</h2>\n<div class=\"table\"><table>\n<tr>\n{heads}</tr>\n{rows}</table></div>\n")
}

/// Text for a page: hidden characters are shown, and the page's own characters are replaced.
fn escaped(text: &str) -> String {
    let text = visible(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place() {
        let name = "</title><script src='x'>\u{202e}&\"";
        assert_eq!(escaped(name), "&lt;/title&gt;&lt;script src=&#39;x&#39;&gt;\\u{202e}&amp;&quot;");
    }
}
