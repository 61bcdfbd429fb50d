//! A pipeline as a page: its timetable as a picture, and tables of stages and ranks. The page is one file that loads nothing.

mod chart;

use super::PipelineFacts;
use super::text::shortened;
use crate::inspection::prediction::milliseconds;
use crate::inspection::units::{bytes, grouped};
use chart::Chart;
use ir::visible;
use std::fmt::{self, Write as _};

const STYLE: &str = include_str!("html/page.css");

/// The classes of the task phases, in the order of [`ir::timetable::TASK_PHASES`], with their names.
const PHASES: [(&str, &str); 3] =
    [("forward", "forward"), ("backward", "backward"), ("weight", "weight gradients")];

impl PipelineFacts {
    /// The page. The title names the model.
    pub fn html(&self, title: &str) -> String {
        let mut page = String::new();
        let written = self.write_page(&mut page, title);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        page
    }

    fn write_page(&self, page: &mut String, title: &str) -> fmt::Result {
        let title = format!("Predicted timetable of {}", escaped(title));
        writeln!(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
        writeln!(page, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
        writeln!(
            page,
            "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
        )?;
        let mut summary = escaped(&self.summary());
        summary[..1].make_ascii_uppercase();
        writeln!(page, "<p>{summary}.</p>")?;
        writeln!(
            page,
            "<p>Times are those of the microbatches of one step; the update is left out. A number in a task is its \
             microbatch. Point at a task, a wait or a transfer to read its times.</p>"
        )?;
        if self.interleaves() {
            writeln!(
                page,
                "<p>A rank has a lane for each of its stages, and works in one lane at a time.</p>"
            )?;
        }
        self.write_legend(page)?;
        Chart::of(self).write(page)?;
        self.write_stage_table(page)?;
        self.write_rank_table(page)?;
        writeln!(page, "</body>\n</html>")
    }

    fn write_legend(&self, page: &mut String) -> fmt::Result {
        let square = |class: &str| format!("<rect class=\"{class}\" width=\"26\" height=\"16\"/>");
        let shown = if self.splits_backward() { 3 } else { 2 };
        let mut entries: Vec<(String, &str)> =
            PHASES[..shown].iter().map(|(class, name)| (square(class), *name)).collect();
        let idle = format!("{}{}", square("ground"), square("idle"));
        entries.push((idle, "idle: the rank waits (bubble)"));
        let arrow = "<path class=\"transfer\" d=\"M1 8H20\"/><path class=\"head\" d=\"M25 8l-7 -4v8z\"/>";
        entries.push((arrow.into(), "transfer to another rank"));
        writeln!(page, "<ul class=\"legend\">")?;
        for (shape, name) in entries {
            let svg = format!("<svg width=\"26\" height=\"16\" aria-hidden=\"true\">{shape}</svg>");
            writeln!(page, "<li>{svg}{name}</li>")?;
        }
        writeln!(page, "</ul>")
    }

    fn write_stage_table(&self, page: &mut String) -> fmt::Result {
        let mut heads = vec!["#stage", "#rank", "#parameters", "#forward", "#backward"];
        if self.splits_backward() {
            heads.push("#weight gradients");
        }
        heads.extend(["#share of the slowest", "#sends to later stages", "first node", "last node"]);
        let row = |(stage, facts): (usize, &super::StageFacts)| {
            let mut cells = vec![stage.to_string(), facts.rank.to_string(), grouped(facts.parameters)];
            cells.extend([facts.forward_ms, facts.backward_ms].map(milliseconds));
            cells.extend(facts.weight_ms.map(milliseconds));
            cells.push(format!("{:.0} %", 100.0 * facts.share_of_slowest));
            cells.push(bytes(facts.sent_forward));
            cells.extend([&facts.first, &facts.last].map(|origin| shortened(origin)));
            cells
        };
        let rows: Vec<Vec<String>> = self.stages.iter().enumerate().map(row).collect();
        write_table(page, "Stages", &heads, &rows)
    }

    fn write_rank_table(&self, page: &mut String) -> fmt::Result {
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
        write_table(page, "Pipeline ranks", &heads, &rows)
    }
}

/// A table. Columns whose heading starts with `#` have numbers.
fn write_table(page: &mut String, title: &str, heads: &[&str], rows: &[Vec<String>]) -> fmt::Result {
    let class = |head: &str| if head.starts_with('#') { " class=\"number\"" } else { "" };
    writeln!(page, "<h2>{title}</h2>\n<div class=\"table\"><table>\n<tr>")?;
    for head in heads {
        writeln!(page, "<th scope=\"col\"{}>{}</th>", class(head), head.trim_start_matches('#'))?;
    }
    writeln!(page, "</tr>")?;
    for row in rows {
        write!(page, "<tr>")?;
        for (head, cell) in heads.iter().zip(row) {
            write!(page, "<td{}>{}</td>", class(head), escaped(cell))?;
        }
        writeln!(page, "</tr>")?;
    }
    writeln!(page, "</table></div>")
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
