//! `touchline openapi`: the OpenAPI document without a running gateway.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::output::{write_json, write_text};
use crate::config::Config;
use crate::proxy::gate;

#[derive(Debug, Args)]
pub(super) struct OpenapiArguments {
    /// The format of the document.
    #[arg(short, long, value_enum, default_value = "json")]
    output: DocumentFormat,
}

/// The formats of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DocumentFormat {
    /// JSON as served, but indented.
    Json,
    /// YAML.
    Yaml,
}

/// Writes the document of a configuration.
pub(super) fn run(
    arguments: &OpenapiArguments,
    config: &Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let document: Value = serde_json::from_slice(&gate::document(config).body)?;
    match arguments.output {
        DocumentFormat::Json => write_json(out, &document),
        DocumentFormat::Yaml => write_text(out, serde_yaml::to_string(&document)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_the_document_that_a_gateway_answers() {
        let text = include_str!("../../gateway.yaml").replace("Football prediction", "Price");
        let config = Config::parse("gateway.yaml", &text, &|_| None).unwrap();
        let served: Value = serde_json::from_slice(&gate::document(&config).body).unwrap();
        let written = |output| {
            let mut out = Vec::new();
            run(&OpenapiArguments { output }, &config, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let json = written(DocumentFormat::Json);
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), served);
        assert!(json.ends_with("}\n"));
        assert_eq!(served["info"]["title"], "Price data API");
        let yaml = written(DocumentFormat::Yaml);
        assert_eq!(serde_yaml::from_str::<Value>(&yaml).unwrap(), served);
        assert!(yaml.starts_with("components:\n"));
    }
}
