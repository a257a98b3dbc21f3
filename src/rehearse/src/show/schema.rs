//! The JSON schema of answers, made of the types that are written.

use super::check::Checked;
use super::diff::{Bisected, PeakDiff};
use crate::answer::SCHEMA;
use crate::explore::fit::Fit;
use crate::explore::plan::Plan;
use crate::explore::versions::Table;
use crate::explore::what_if::VariantRow;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// Of what a command's `--json` writes; of any other than those below, of `rehearse`, with one card.
pub fn schema(of: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = match of {
        "what-if" => generator.into_root_schema_for::<Vec<VariantRow>>(),
        "fit" => generator.into_root_schema_for::<Vec<Fit>>(),
        "plan" => generator.into_root_schema_for::<Vec<Plan>>(),
        "versions" => generator.into_root_schema_for::<Table>(),
        "bisect" => generator.into_root_schema_for::<Bisected>(),
        "diff" => generator.into_root_schema_for::<PeakDiff>(),
        _ => generator.into_root_schema_for::<Checked>(),
    };
    schema.insert("$id".to_string(), json!(format!("urn:vramlab:{of}:{SCHEMA}")));
    let mut schema = schema.to_value();
    if let Some(number) = schema.pointer_mut("/properties/schema") {
        *number = json!({ "const": SCHEMA });
    }
    schema
}
