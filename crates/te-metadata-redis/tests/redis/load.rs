//! Many tasks at once.

use te_metadata::MetadataStore;

use crate::{key, put, server::Server, soon};

const TASKS: usize = 64;
const OPERATIONS: usize = 1000;

/// META-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_make_no_error_and_use_one_connection() {
    let server = Server::start();
    let store = server.store();
    let work = |number: usize| {
        let store = store.clone();
        async move {
            let at = format!("load/{number}");
            for round in 0..OPERATIONS {
                // Mostly reads, as in life; each write is a disk flush of the server.
                match round % 10 {
                    0 => {
                        store.put(put(&at, &format!("{number}:{round}")), soon()).await.unwrap();
                    }
                    9 if round % 50 == 49 => assert!(store.delete(&key(&at), None, soon()).await.unwrap()),
                    _ => {
                        let found = store.get(&key(&at), soon()).await.unwrap();
                        let expected = format!("{number}:{}", round - round % 10);
                        assert_eq!(found.unwrap().value, expected);
                    }
                }
            }
        }
    };
    let tasks: Vec<_> = (0..TASKS).map(|number| tokio::spawn(work(number))).collect();
    let mut most = 0;
    for task in tasks {
        while !task.is_finished() {
            most = most.max(server.connections());
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        task.await.unwrap();
    }
    assert_eq!(most, 1);
}
