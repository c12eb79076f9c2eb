//! `te topology`: what this host has, and which RDMA device is close to which memory.

mod facts;
mod json;

use std::path::PathBuf;

use clap::Args;
use te_segment::Topology;
use te_topology::{Host, NicFilter, Root, read_matrix};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::{output, usage};

/// Which host, and what of it.
#[derive(Args, Debug)]
pub(crate) struct TopologyArgs {
    /// Looks at a copy of another host's files: the folder that has its `sys`, `proc` and `dev`
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Prints only the priority matrix, as JSON
    #[arg(long)]
    pub(crate) matrix: bool,
    /// Takes the matrix from a file of the same form, after checking that its devices can be used
    #[arg(long, value_name = "FILE")]
    pub(crate) matrix_file: Option<PathBuf>,
    /// None but these RDMA devices
    #[arg(long, value_name = "NAME,…")]
    pub(crate) only: Option<String>,
    /// Without these RDMA devices
    #[arg(long, value_name = "NAME,…")]
    pub(crate) without: Option<String>,
}

impl TopologyArgs {
    fn filter(&self) -> Result<NicFilter> {
        let refused = |error: te_segment::NameError| Failure::Usage(format!("a list of devices: {error}"));
        let filter = NicFilter::all();
        let filter = filter.only(self.only.as_deref().unwrap_or_default()).map_err(refused)?;
        filter.without(self.without.as_deref().unwrap_or_default()).map_err(refused)
    }
}

pub(crate) fn run(context: &Context, args: &TopologyArgs) -> Result<()> {
    if !args.root.is_dir() {
        return usage(format!("--root {}: not a folder", args.root.display()));
    }
    let host = Host::discover(&Root::at(&args.root), &args.filter()?)
        .map_err(|error| Failure::Other(error.to_string()))?;
    let matrix = matrix(&host, args)?;
    if args.matrix {
        return output::json(&matrix.to_matrix());
    }
    if context.json {
        return output::json(&json::host(&host, &matrix));
    }
    output::line(&format!("{}\n{}", host.table(), host.tree().trim_end()))?;
    if !matrix.is_empty() {
        output::line(&format!("\n{}", rails(&matrix).trim_end()))?;
    }
    Ok(())
}

fn matrix(host: &Host, args: &TopologyArgs) -> Result<Topology> {
    match &args.matrix_file {
        Some(path) => {
            read_matrix(path, &host.usable_nics()).map_err(|error| Failure::Other(error.to_string()))
        }
        None => Ok(host.matrix()),
    }
}

/// A line for every location.
fn rails(matrix: &Topology) -> String {
    use output::{Align, Table};
    let mut table =
        Table::new(&[("MEMORY", Align::Left), ("PREFERRED", Align::Left), ("AVAILABLE", Align::Left)]);
    let names = |nics: &[te_segment::NicName]| match nics {
        [] => "-".to_owned(),
        _ => nics.iter().map(te_segment::NicName::as_str).collect::<Vec<_>>().join(" "),
    };
    for (location, rails) in matrix.iter() {
        table.row([location.to_string(), names(&rails.preferred), names(&rails.available)]);
    }
    table.render()
}
