//! What holds for a name, and that a flaw is found.

use super::*;

impl Model for Names {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        let first = Life { engine: 0, life: 1 };
        let entry = |revision| Some(Entry { by: first, revision, age: 0 });
        let mut old = match self.old {
            Old::Alive | Old::Silent => Engine::new(1, Role::Holds([1, 2])),
            Old::Dead => Engine::new(1, Role::Dead),
            Old::Restarted => Engine::new(2, Role::Idle),
        };
        (old.silent, old.doubtful) = (self.old == Old::Silent, self.old == Old::Silent);
        let claimants = std::iter::repeat_n(Engine::new(1, Role::Idle), self.claimants);
        let engines = std::iter::once(old).chain(claimants).collect();
        let store = [entry(1), entry(2)];
        vec![World { ticks: 0, faults: self.faults, revision: 2, store, engines, wrong: None }]
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        let careless = self.flaw == Flaw::Careless;
        let mut rests = true;
        for (number, engine) in world.engines.iter().enumerate() {
            if engine.silent {
                steps.push(Step::Wake(number));
                continue;
            }
            let waits = matches!(engine.role, Role::Publishes(_, Action::Wait));
            let keeps = world.is_due(number) && !careless;
            rests &= !engine.is_busy() && !keeps;
            if engine.is_busy() || (waits && world.ticks == TICKS) {
                steps.push(Step::Act { engine: number, heard: true });
            }
            if let Role::Publishes(_, Action::Ask(endpoint)) = &engine.role {
                let dead = matches!(world.engines[engine_at(endpoint)].role, Role::Dead);
                if dead || world.faults > 0 {
                    steps.push(Step::Act { engine: number, heard: false });
                }
            }
            if matches!(engine.role, Role::Idle) {
                steps.push(Step::Begin(number));
            }
            if keeps {
                steps.push(Step::Keep(number));
            }
            if world.faults > 0 && !matches!(engine.role, Role::Dead | Role::Idle | Role::Refused(_)) {
                steps.extend([Step::FallSilent(number), Step::Die(number)]);
                if number == 0 {
                    steps.push(Step::Restart);
                }
            }
        }
        if rests && world.ticks < TICKS {
            steps.push(Step::Tick);
        }
        steps
    }

    fn apply(&self, world: &mut World, step: &Step) {
        match *step {
            Step::Begin(engine) => {
                let abilities = Abilities { conditional: true, leases: self.leases };
                let (machine, action) = Publishing::begin(abilities, None);
                world.engines[engine].role = Role::Publishes(machine, action);
            }
            Step::Act { engine, heard } => {
                if let Role::Publishes(_, Action::Ask(endpoint)) = &world.engines[engine].role
                    && !heard
                    && !matches!(world.engines[engine_at(endpoint)].role, Role::Dead)
                {
                    world.faults -= 1;
                }
                world.act(self.flaw, engine, heard);
            }
            Step::Keep(engine) => world.keep(self.flaw, self.leases, engine),
            Step::Tick => world.tick(self.leases),
            Step::Wake(engine) => world.engines[engine].silent = false,
            Step::FallSilent(engine) => {
                world.faults -= 1;
                let engine = &mut world.engines[engine];
                (engine.silent, engine.doubtful) = (true, true);
            }
            Step::Die(engine) => {
                world.faults -= 1;
                world.engines[engine].role = Role::Dead;
            }
            Step::Restart => {
                world.faults -= 1;
                world.engines[0] = Engine::new(world.engines[0].life + 1, Role::Idle);
            }
        }
    }

    fn check(&self, world: &World) -> Result<(), String> {
        if let Some(wrong) = &world.wrong {
            return Err(wrong.clone());
        }
        let lives = (0..world.engines.len()).filter(|engine| world.lives(world.life(*engine))).count();
        if lives > 1 { Err(format!("{lives} engines hold the name")) } else { Ok(()) }
    }

    fn at_end(&self, world: &World) -> Result<(), String> {
        let mut holders = 0;
        for (number, engine) in world.engines.iter().enumerate().filter(|(_, engine)| engine.holds()) {
            holders += 1;
            let life = world.life(number);
            if !world.store.iter().all(|entry| entry.is_some_and(|entry| entry.by.engine == number)) {
                return Err(format!("{life:?} does not know that the name is lost"));
            }
            if engine.silent {
                return Err("silent at the end".to_owned());
            }
        }
        let untouched = world.faults == self.faults;
        match self.old {
            _ if holders > 1 => Err(format!("{holders} engines hold the name at the end")),
            Old::Alive if untouched && !world.engines[0].holds() => {
                Err("the holder lost its name".to_owned())
            }
            // Without leases nobody can tell silence from death, so only who is refused takes over.
            Old::Dead if untouched && self.leases && holders == 0 => Err("nobody took the name".to_owned()),
            _ => Ok(()),
        }
    }
}

fn names(old: Old, claimants: usize, faults: u8) -> Names {
    Names { flaw: Flaw::None, old, leases: true, claimants, faults }
}

fn holds(model: &Names) -> Explored {
    match explore(model, STATES) {
        Ok(seen) => {
            println!("{seen:?}");
            seen
        }
        Err(finding) => panic!("{finding}"),
    }
}

fn fails(model: &Names) -> String {
    match explore(model, STATES) {
        Err(Finding::Violation { why, .. }) => why,
        other => panic!("the flaw is not found: {other:?}"),
    }
}

/// META-03
#[test]
fn a_living_holder_keeps_its_name_whatever_happens_once() {
    let seen = holds(&names(Old::Alive, 2, 1));
    assert!(seen.states > 1_000, "{seen:?}");
}

/// META-03
#[test]
fn a_dead_holder_is_followed_by_one_of_those_who_claim_its_name() {
    holds(&names(Old::Dead, 2, 0));
    holds(&names(Old::Dead, 2, 1));
}

/// META-03
#[test]
fn a_silent_holder_learns_that_its_name_was_taken_over() {
    let seen = holds(&names(Old::Silent, 2, 0));
    assert!(seen.states > 1_000, "{seen:?}");
    holds(&names(Old::Silent, 1, 1));
}

/// META-03
#[test]
fn the_next_life_of_a_holder_and_others_do_not_both_take_its_name() {
    holds(&names(Old::Restarted, 2, 1));
}

/// META-03
#[test]
fn without_leases_too_there_is_one_holder() {
    for old in [Old::Alive, Old::Dead, Old::Silent, Old::Restarted] {
        holds(&Names { leases: false, ..names(old, 2, 1) });
    }
}

/// META-03
#[test]
fn one_claimant_is_right_under_two_faults() {
    for old in [Old::Alive, Old::Dead, Old::Silent, Old::Restarted] {
        holds(&names(old, 1, 2));
    }
}

#[test]
fn a_store_that_does_not_compare_is_found() {
    let why = fails(&Names { flaw: Flaw::Store, ..names(Old::Dead, 2, 0) });
    assert!(why.contains("which is alive") || why.contains("hold the name"), "{why}");
}

#[test]
fn taking_silence_for_death_is_found() {
    let why = fails(&Names { flaw: Flaw::Impatient, ..names(Old::Alive, 1, 1) });
    assert!(why.contains("which is alive"), "{why}");
}

#[test]
fn a_holder_that_does_not_look_after_its_name_is_found() {
    let why = fails(&Names { flaw: Flaw::Careless, ..names(Old::Silent, 1, 0) });
    assert!(why.contains("name"), "{why}");
}

/// META-03: of two that take the name of a dead engine over at once, neither would have it in the end.
#[test]
fn giving_up_a_name_for_its_place_alone_is_found() {
    let why = fails(&Names { flaw: Flaw::Timid, ..names(Old::Dead, 2, 0) });
    assert_eq!(why, "nobody took the name");
}
