//! Bounds on the uninterpreted JSON that a descriptor carries.

use serde_json::Value;

use crate::error::FieldProblem;

/// Deepest nesting of an uninterpreted value, so that the descriptor around it stays within the limit of documents.
pub(super) const MAX_VALUE_NESTING: usize = 32;

/// Refuses values that are nested too deep. Itself nested no deeper than the limit.
pub(super) fn check_depth(value: &Value) -> Result<(), FieldProblem> {
    fn fits(value: &Value, levels: usize) -> bool {
        match value {
            Value::Array(elements) => levels > 0 && elements.iter().all(|e| fits(e, levels - 1)),
            Value::Object(members) => levels > 0 && members.values().all(|m| fits(m, levels - 1)),
            _ => true,
        }
    }
    if fits(value, MAX_VALUE_NESTING) {
        Ok(())
    } else {
        Err(FieldProblem::TooDeep { limit: MAX_VALUE_NESTING })
    }
}
