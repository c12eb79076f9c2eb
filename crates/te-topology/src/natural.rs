//! Order of names as people count: `mlx5_2` before `mlx5_10`.

use std::cmp::Ordering;

/// Compares names; runs of digits by their value, everything else byte by byte. Total: names that count the same are
/// told apart by their bytes.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    loop {
        let (Some(&x), Some(&y)) = (left.first(), right.first()) else {
            return left.len().cmp(&right.len()).then_with(|| a.cmp(b));
        };
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (digits(&mut left), digits(&mut right));
            // Without leading zeros the longer number is the larger one.
            m.len().cmp(&n.len()).then_with(|| m.cmp(n))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            x.cmp(&y)
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Takes the digits at the beginning, and gives them without leading zeros.
fn digits<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let end = bytes.iter().position(|b| !b.is_ascii_digit()).unwrap_or(bytes.len());
    let (number, rest) = bytes.split_at(end);
    *bytes = rest;
    let zeros = number.iter().take_while(|b| **b == b'0').count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_count() {
        let mut names = ["mlx5_10", "mlx5_2", "node1", "mlx5_bond_0", "mlx5_02", "mlx5"];
        names.sort_by(|a, b| compare(a, b));
        assert_eq!(names, ["mlx5", "mlx5_02", "mlx5_2", "mlx5_10", "mlx5_bond_0", "node1"]);
    }

    proptest! {
        /// An order that sorting can rely on.
        #[test]
        fn it_is_an_order(a in "[a0-9]{0,6}", b in "[a0-9]{0,6}", c in "[a0-9]{0,6}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            prop_assert_eq!(compare(&a, &b).is_eq(), a == b);
            if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
                prop_assert!(compare(&a, &c).is_le());
            }
        }
    }
}
