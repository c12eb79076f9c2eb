//! The synchronisation primitives of the gate: `parking_lot` and `std`, or the model checker's in its test.

#[cfg(not(all(loom, test)))]
mod primitives {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

    pub(crate) use parking_lot::{Condvar, Mutex};
}

#[cfg(all(loom, test))]
mod primitives {
    //! The same shapes over loom. A wait has no time-out: a lost wake-up is a deadlock that the model reports.

    use std::{
        ops::{Deref, DerefMut},
        time::Instant,
    };

    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    pub(crate) struct Condvar(loom::sync::Condvar);

    pub(crate) struct Waited;

    impl Waited {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> Waited {
            let inner = guard.0.take().unwrap();
            guard.0 = Some(self.0.wait(inner).unwrap());
            Waited
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub(crate) use primitives::{AtomicU64, Condvar, Mutex, Ordering};
