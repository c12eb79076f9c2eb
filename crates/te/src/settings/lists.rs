//! Lists of words as settings.

use te_segment::TransportKind;

use super::value::Value;
use crate::address::InterfaceFilter;

/// Which transports are installed; `None` means every one that is compiled in.
impl Value for Option<Vec<TransportKind>> {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        if text == "all" {
            return Some(None);
        }
        text.split(',').map(|word| word.trim().parse().ok()).collect::<Self>().map(Some)
    }

    fn is_within(&self, (): &()) -> bool {
        self.as_ref().is_none_or(|list| !list.is_empty())
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(
            || "all".to_owned(),
            |list| list.iter().map(TransportKind::as_str).collect::<Vec<_>>().join(","),
        )
    }

    fn expected((): &()) -> String {
        "all, or words separated by commas, such as tcp".to_owned()
    }
}

impl Value for InterfaceFilter {
    type Range = ();

    fn parse(text: &str) -> Option<Self> {
        if text == "all" { Some(Self::default()) } else { text.parse().ok().filter(|_| !text.is_empty()) }
    }

    fn is_within(&self, (): &()) -> bool {
        true
    }

    fn show(&self) -> String {
        if *self == Self::default() { "all".to_owned() } else { self.to_string() }
    }

    fn expected((): &()) -> String {
        "all, or names of interfaces separated by commas, such as eth0, eth* or !docker0".to_owned()
    }
}
