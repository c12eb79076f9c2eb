//! Exhaustive exploration of small models: every order of events, every fault the model allows, breadth first.
//!
//! A [`Model`] names its start states and the steps that are possible in a state. [`explore`] visits each distinct
//! state once, told apart by a 128-bit hash, checks what must always hold, what must hold where nothing can happen any
//! more, and that such an end can be reached from everywhere. A counterexample is as short as one can be.
//!
//! ```
//! use te_testkit::{Finding, Model, explore};
//!
//! /// Two workers that read a counter and write it back one larger.
//! struct Lost;
//! impl Model for Lost {
//!     type State = (u8, [Option<u8>; 2], u8);
//!     type Step = usize;
//!     fn starts(&self) -> Vec<Self::State> {
//!         vec![(0, [None; 2], 0)]
//!     }
//!     fn steps(&self, state: &Self::State) -> Vec<usize> {
//!         (0..2).filter(|worker| state.2 & (1 << worker) == 0).collect()
//!     }
//!     fn apply(&self, state: &mut Self::State, worker: &usize) {
//!         match state.1[*worker] {
//!             None => state.1[*worker] = Some(state.0),
//!             Some(seen) => (state.0, state.2) = (seen + 1, state.2 | 1 << worker),
//!         }
//!     }
//!     fn at_end(&self, state: &Self::State) -> Result<(), String> {
//!         if state.0 == 2 { Ok(()) } else { Err(format!("two increments made {}", state.0)) }
//!     }
//! }
//! let finding = explore(&Lost, 1000).unwrap_err();
//! assert!(matches!(finding, Finding::Violation { ref steps, .. } if steps.len() == 4));
//! ```

mod wire;

#[cfg(test)]
mod tests;

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

pub use wire::{Move, Wire};

/// What is explored. Everything that decides the future is in the state; the model itself does not change.
pub trait Model {
    /// One state. Two states with equal hashes are taken for the same.
    type State: Clone + Hash + Debug;
    /// One thing that can happen.
    type Step: Clone + Debug;

    /// Where it can begin.
    fn starts(&self) -> Vec<Self::State>;

    /// What can happen next. None: this is an end.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;

    /// Makes one of these steps.
    fn apply(&self, state: &mut Self::State, step: &Self::Step);

    /// What holds in every state.
    ///
    /// # Errors
    ///
    /// What is violated, in one line.
    fn check(&self, _state: &Self::State) -> Result<(), String> {
        Ok(())
    }

    /// What holds at every end.
    ///
    /// # Errors
    ///
    /// What is violated, in one line.
    fn at_end(&self, _state: &Self::State) -> Result<(), String> {
        Ok(())
    }
}

/// What a complete exploration saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// States in which nothing can happen any more.
    pub ends: usize,
    /// Steps to the farthest state.
    pub depth: usize,
}

/// Why an exploration did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// Something that must hold does not.
    #[error("{why}\n  after {}\n  in {state}", steps.join(",\n        "))]
    Violation {
        /// What.
        why: String,
        /// The steps that lead there from a start, as few as possible.
        steps: Vec<String>,
        /// The state.
        state: String,
    },
    /// There are more states than allowed: nothing is proven.
    #[error("more than {limit} states")]
    TooManyStates {
        /// The limit.
        limit: usize,
    },
}

struct Node<S> {
    /// The state it was first reached from; for a start, which one it is.
    parent: u32,
    depth: u32,
    /// None at a start.
    step: Option<S>,
}

/// Visits every state of the model, at most `limit`.
///
/// # Errors
///
/// The first thing found in breadth-first order, or that there are too many states.
pub fn explore<M: Model>(model: &M, limit: usize) -> Result<Explored, Finding> {
    let mut run = Run { model, nodes: Vec::new(), index: HashMap::new(), edges: Vec::new() };
    let mut queue = VecDeque::new();
    for (start, state) in (0..).zip(model.starts()) {
        let (number, fresh) = run.visit(&state, start, None);
        if fresh {
            queue.push_back((number, state));
        }
    }
    let mut ends = Vec::new();
    while let Some((number, state)) = queue.pop_front() {
        model.check(&state).map_err(|why| run.violation(why, number, &state))?;
        let steps = model.steps(&state);
        if steps.is_empty() {
            model.at_end(&state).map_err(|why| run.violation(why, number, &state))?;
            ends.push(number);
        }
        for step in steps {
            let mut next = state.clone();
            model.apply(&mut next, &step);
            let (target, fresh) = run.visit(&next, number, Some(step));
            run.edges.push((target, number));
            if fresh {
                queue.push_back((target, next));
            }
        }
        if run.nodes.len() > limit {
            return Err(Finding::TooManyStates { limit });
        }
    }
    run.all_reach(&ends)?;
    let depth = run.nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    Ok(Explored {
        states: run.nodes.len(),
        steps: run.edges.len(),
        ends: ends.len(),
        depth: usize::try_from(depth).unwrap_or(usize::MAX),
    })
}

struct Run<'a, M: Model> {
    model: &'a M,
    nodes: Vec<Node<M::Step>>,
    index: HashMap<u128, u32>,
    /// From a state to one it was reached from: the steps, backwards.
    edges: Vec<(u32, u32)>,
}

impl<M: Model> Run<'_, M> {
    /// The number of a state, and whether it is new.
    fn visit(&mut self, state: &M::State, parent: u32, step: Option<M::Step>) -> (u32, bool) {
        let fresh = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        match self.index.entry(hash(state)) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(place) => {
                place.insert(fresh);
                let depth = match &step {
                    Some(_) => self.nodes[parent as usize].depth + 1,
                    None => 0,
                };
                self.nodes.push(Node { parent, depth, step });
                (fresh, true)
            }
        }
    }

    /// The start a state was first reached from, and the steps.
    fn path(&self, mut number: u32) -> (u32, Vec<M::Step>) {
        let mut steps = Vec::new();
        let start = loop {
            let Node { parent, step, .. } = &self.nodes[number as usize];
            let Some(step) = step else { break *parent };
            steps.push(step.clone());
            number = *parent;
        };
        steps.reverse();
        (start, steps)
    }

    fn violation(&self, why: String, number: u32, state: &M::State) -> Finding {
        let steps = self.path(number).1.iter().map(|step| format!("{step:?}")).collect();
        Finding::Violation { why, steps, state: format!("{state:?}") }
    }

    /// An end can be reached from every state; otherwise something can go round and round for ever.
    fn all_reach(&mut self, ends: &[u32]) -> Result<(), Finding> {
        self.edges.sort_unstable();
        let mut reached = vec![false; self.nodes.len()];
        let mut stack = ends.to_vec();
        while let Some(number) = stack.pop() {
            if std::mem::replace(&mut reached[number as usize], true) {
                continue;
            }
            let first = self.edges.partition_point(|(target, _)| *target < number);
            let before = self.edges[first..].iter().take_while(|(target, _)| *target == number);
            stack.extend(before.map(|(_, source)| *source).filter(|source| !reached[*source as usize]));
        }
        let Some(lost) = reached.iter().position(|reached| !reached) else { return Ok(()) };
        let number = u32::try_from(lost).unwrap_or(u32::MAX);
        let (start, steps) = self.path(number);
        let mut state = self.model.starts().swap_remove(start as usize);
        for step in &steps {
            self.model.apply(&mut state, step);
        }
        let why = "no end can be reached from here".to_owned();
        Err(self.violation(why, number, &state))
    }
}

/// Two independent 64-bit hashes: with a million states a collision has a chance of about 10⁻²⁷.
fn hash<T: Hash>(value: &T) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        value.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}
