//! The page, in a real browser: what it shows, that it stays live, and that names stay names.
//!
//! The browser is the one named by `TE_CHROMIUM`, or `chromium` on the path. Screenshots go to `target/tmp`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure fails the test")]

mod support;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use support::{builder, connect, key, put, soon};
use te_metadata::{Directory as _, Keys, MetadataStore as _, StoreDirectory, format_timestamp};
use te_metadata_http::HttpStore;
use te_segment::{
    Access, AddressRange, BufferDescriptor, Endpoint, Generation, Identity, Incarnation, Location,
    SegmentDescriptor, SegmentName, TcpFraming, TcpService, TransportKind, Via,
};

const EVIL: &str =
    "<img src=x onerror=\"window.hacked=1\"></b><script>window.hacked=2<\u{2f}script>&amp;\"'`";

/// A browser with one tab, spoken to through its debugging pipe.
struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: String,
    next: u64,
    /// Everything the tab asked for.
    requests: Vec<String>,
    /// What the page complained about.
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser; without one says so, loudly.
    fn start(test: &str) -> Option<Self> {
        let program = std::env::var("TE_CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
        let found =
            Command::new(&program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED {test}: no browser; name one in TE_CHROMIUM or install chromium");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        // The pipe is on descriptors 3 and 4; the shell puts our ends there.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 >/dev/null 2>&1", &program])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-pipe",
            ])
            .args(["--force-color-profile=srgb", "--lang=en-GB"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (next, requests, complaints) = (0, Vec::new(), Vec::new());
        let session = String::new();
        let mut browser =
            Self { child, input, output, session, next, requests, complaints, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Network.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.input.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut text = Vec::new();
            self.output.read_until(0, &mut text).unwrap();
            assert_eq!(text.pop(), Some(0), "the browser is gone");
            let mut answer: Value = serde_json::from_slice(&text).unwrap();
            if answer["id"] == json!(id) {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            match answer["method"].as_str() {
                Some("Network.requestWillBeSent") => {
                    self.requests.push(answer["params"]["request"]["url"].as_str().unwrap().to_owned());
                }
                Some("Runtime.exceptionThrown") => self.complaints.push(answer["params"].to_string()),
                Some("Log.entryAdded") => self.complaints.push(answer["params"]["entry"]["text"].to_string()),
                _ => {}
            }
        }
    }

    /// A viewport of this size, and a colour scheme.
    fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let mobile = width < 600;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
    }

    fn eval(&mut self, script: &str) -> Value {
        let arguments = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let outcome = self.call("Runtime.evaluate", arguments);
        assert!(outcome["exceptionDetails"].is_null(), "{script}: {outcome}");
        outcome["result"]["value"].clone()
    }

    /// Waits until the script gives this.
    fn wait(&mut self, script: &str, expected: Value) {
        let begun = Instant::now();
        loop {
            let found = self.eval(script);
            if found == expected {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{script} is {found}, not {expected}; {:?}",
                self.complaints
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn names(&mut self) -> Vec<String> {
        let names =
            self.eval("[...document.querySelectorAll('#segments .name b')].map((b) => b.textContent)");
        serde_json::from_value(names).unwrap()
    }

    fn search(&mut self, text: &str) {
        let text = json!(text);
        self.eval(&format!(
            "(() => {{ const s = document.getElementById('search'); s.value = {text}; s.dispatchEvent(new Event('input')); }})()"
        ));
    }

    fn shoot(&mut self, name: &str) {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("metad-{name}.png"));
        std::fs::write(&path, base64(shot["data"].as_str().unwrap())).unwrap();
        eprintln!("screenshot: {}", path.display());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut word, mut bits) = (Vec::new(), 0_u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let value = DIGITS.iter().position(|known| *known == digit).unwrap();
        (word, bits) = (word << 6 | value as u32, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
            word &= (1 << bits) - 1;
        }
    }
    bytes
}

/// A segment with buffers at these locations: location, count, bytes of each.
fn segment(
    name: &str,
    life: u128,
    control: &str,
    buffers: &[(&str, u64, u64)],
    kinds: &[TransportKind],
) -> SegmentDescriptor {
    let control: Endpoint = control.parse().unwrap();
    let mut at = 0x7f00_0000_0000;
    let mut all = Vec::new();
    for (location, count, bytes) in buffers {
        for _ in 0..*count {
            let via: BTreeMap<TransportKind, Via> = kinds
                .iter()
                .map(|kind| {
                    (
                        kind.clone(),
                        if *kind == TransportKind::TCP { Via::Tcp } else { Via::Other(json!({"map": 0})) },
                    )
                })
                .collect();
            let (range, place) = (AddressRange::new(at, *bytes).unwrap(), Location::parse(location));
            all.push(
                BufferDescriptor::new(range, place, Access::REMOTE, Some(Generation::new(1)), via).unwrap(),
            );
            at += bytes.next_multiple_of(4096) + 4096;
        }
    }
    SegmentDescriptor::builder(SegmentName::new(name).unwrap())
        .identity(Identity::Te { incarnation: Incarnation::from_bits(life), control: Some(control.clone()) })
        .tcp(TcpService {
            host: Some(control.host().clone()),
            port: 16411.try_into().unwrap(),
            framing: TcpFraming::V2,
        })
        .buffers(all)
        .build()
        .unwrap()
}

async fn publish(store: &HttpStore, segment: SegmentDescriptor, lease: Option<u64>) {
    let mut directory = StoreDirectory::new(store.clone(), Keys::default());
    if let Some(seconds) = lease {
        directory = directory.with_lease(Duration::from_secs(seconds));
    }
    let place = segment.control().cloned().unwrap();
    directory.publish(segment.into(), place.into(), soon()).await.unwrap();
}

const GIB: u64 = 1 << 30;

async fn fill(store: &HttpStore) {
    use TransportKind as T;
    let many = [
        ("cuda:0", 32, GIB / 4),
        ("cuda:1", 32, GIB / 4),
        ("cpu:0", 1, 64 * GIB),
        ("cpu:1", 3, 1 << 20),
        ("hip:0", 1, GIB),
    ];
    publish(
        store,
        segment("prefill-3", 0x9c1f << 112, "10.0.0.3:15211", &many, &[T::SHM, T::TCP, T::NVLINK]),
        Some(600),
    )
    .await;
    publish(
        store,
        segment("decode-7", 0x41aa << 112, "10.0.0.7:15893", &[("cpu:0", 1, 8 * GIB)], &[T::SHM, T::TCP]),
        Some(600),
    )
    .await;
    publish(
        store,
        segment("decode-10", 7 << 112, "[2001:db8::1]:15893", &[("cpu:1", 12, 48 << 20)], &[T::TCP]),
        Some(9),
    )
    .await;
    let long = format!("weights/{}", "a-very-long-name-".repeat(12));
    publish(store, segment(&long, 8 << 112, "10.0.0.9:15893", &[], &[T::TCP]), Some(600)).await;
    let reference = format!(
        "{{\"buffers\":[{{\"addr\":94757358125056,\"length\":65536,\"name\":\"node-a\"}}],\"name\":\"node-a\",\"protocol\":\"tcp\",\"tcp_data_host\":\"127.0.0.1\",\"tcp_data_port\":15548,\"tcp_proto_version\":2,\"timestamp\":\"{}\"}}",
        format_timestamp(std::time::SystemTime::now())
    );
    store.put(put("mooncake/ram/node-a", &reference), soon()).await.unwrap();
    store
        .put(
            put("mooncake/rpc_meta/node-a", "{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":15612}"),
            soon(),
        )
        .await
        .unwrap();
    store.put(put("mooncake/blue/ram/broken", "{\"protocol\":[]}"), soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_shows_the_cluster_and_stays_live() {
    let Some(mut browser) = Browser::start("page_shows_the_cluster_and_stays_live") else { return };
    let server = builder().start().await.unwrap();
    let store = connect(&server.url()).await;
    fill(&store).await;
    let page = format!("http://{}/", server.local_addr());
    tokio::task::block_in_place(|| {
        browser.look(1280, 800, "light");
        browser.open(&page);
        browser.wait("document.querySelectorAll('#segments > li').length", json!(6));
        browser.wait("document.getElementById('link-text')?.textContent ?? ''", json!("live"));
        let names = browser.names();
        assert_eq!(&names[..4], ["broken", "decode-7", "decode-10", "node-a"], "sorted, numbers as numbers");
        browser.shoot("1280-light");
        browser.look(1280, 800, "dark");
        browser.eval("document.querySelectorAll('#segments .line')[4].click()");
        browser.wait("document.querySelectorAll('.detail td').length > 8", json!(true));
        browser.shoot("1280-dark-detail");

        browser.look(360, 740, "dark");
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), json!(360), "nothing sticks out");
        browser.shoot("360-dark-detail");
        browser.eval("document.querySelectorAll('#segments .line')[4].click()");
        browser.look(360, 740, "light");
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), json!(360), "nothing sticks out");
        browser.shoot("360-light");

        browser.search("CUDA nvlink");
        assert_eq!(browser.names(), ["prefill-3"]);
        browser.search("[2001");
        assert_eq!(browser.names(), ["decode-10"]);
        browser.search("no such thing");
        assert_eq!(
            browser.eval("document.getElementById('empty').textContent"),
            json!("No segment matches.")
        );
        browser.search("decode prefill");
        assert_eq!(browser.names(), [""; 0], "every word has to match");
        browser.search("");
        browser.eval("document.querySelector('#heads [data-sort=bytes]').click()");
        browser.eval("document.querySelector('#heads [data-sort=bytes]').click()");
        assert_eq!(browser.names()[..2], ["prefill-3", "decode-7"], "largest first");
    });

    // What changes while it is looked at.
    let changed =
        segment("decode-7", 0x41aa << 112, "10.0.0.8:1", &[("cpu:5", 1, 4096)], &[TransportKind::TCP]);
    let text = changed
        .encode(&te_segment::EncodeOptions {
            compat: te_segment::CompatProtocol::Tcp,
            extension: true,
            timestamp: "x".into(),
        })
        .unwrap();
    store.put(put("mooncake/ram/decode-7", &text), soon()).await.unwrap();
    store.delete(&key("mooncake/ram/node-a"), None, soon()).await.unwrap();
    tokio::task::block_in_place(|| {
        browser.search("decode-7");
        browser.wait("document.querySelector('#segments .owner').textContent", json!("10.0.0.8:1"));
        browser.search("node-a");
        browser.wait("document.querySelector('#segments .state').textContent", json!("gone"));
        browser.wait("document.querySelectorAll('#segments > li').length", json!(0));
        // Its lease of nine seconds runs out: first late, then gone.
        browser.search("decode-10");
        browser
            .wait("document.querySelector('#segments .state')?.textContent ?? 'removed'", json!("removed"));
    });
    server.shutdown(soon()).await.unwrap();
    tokio::task::block_in_place(|| {
        browser.wait("document.getElementById('link').className", json!("link off"));
    });
    assert!(browser.requests.iter().all(|url| url.starts_with(&page)), "{:?}", browser.requests);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_shown_and_never_run() {
    let Some(mut browser) = Browser::start("names_are_shown_and_never_run") else { return };
    let server = builder().start().await.unwrap();
    let store = connect(&server.url()).await;
    let evil = segment(
        "node-a",
        1,
        "10.0.0.3:15211",
        &[(EVIL, 1, 4096)],
        &[TransportKind::new("<i>x</i>").unwrap_or(TransportKind::TCP)],
    );
    let text = evil
        .encode(&te_segment::EncodeOptions {
            compat: te_segment::CompatProtocol::Tcp,
            extension: true,
            timestamp: EVIL.into(),
        })
        .unwrap();
    store.put(put(&format!("mooncake/ram/{EVIL}"), &text), soon()).await.unwrap();
    store.put(put(&format!("mooncake/{EVIL}/ram/{EVIL}"), EVIL), soon()).await.unwrap();
    let page = format!("http://{}/", server.local_addr());
    tokio::task::block_in_place(|| {
        browser.look(1280, 800, "light");
        browser.open(&page);
        browser.wait("document.querySelectorAll('#segments > li').length", json!(2));
        browser.eval("document.querySelectorAll('#segments .line').forEach((line) => line.click())");
        browser.eval("document.querySelectorAll('#segments .line')[1].click()");
        assert!(browser.names().iter().all(|name| name.contains("<img src=x")), "{:?}", browser.names());
        assert_eq!(
            browser.eval("document.querySelectorAll('main img, main script, main i:not(.meter i)').length"),
            json!(0)
        );
        assert_eq!(browser.eval("typeof window.hacked"), json!("undefined"));
        // The policy is the second line: even markup that got in would not run.
        browser.eval(
            "new Promise((done) => { const box = document.createElement('div'); box.innerHTML = '<img src=x onerror=\"window.hacked=3\">'; document.body.append(box); setTimeout(done, 500); })",
        );
        assert_eq!(browser.eval("typeof window.hacked"), json!("undefined"));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_asks_for_the_token() {
    let Some(mut browser) = Browser::start("page_asks_for_the_token") else { return };
    let server = builder().token("s3cret").start().await.unwrap();
    let config = te_metadata_http::HttpConfig::parse(&server.url()).unwrap().bearer_token("s3cret");
    fill(&HttpStore::connect(config, soon()).await.unwrap()).await;
    let page = format!("http://{}/", server.local_addr());
    tokio::task::block_in_place(|| {
        browser.look(360, 740, "light");
        browser.open(&page);
        browser.wait("document.getElementById('token-form')?.hidden ?? null", json!(false));
        assert_eq!(browser.names(), [""; 0]);
        browser.shoot("360-token");
        for (token, hidden) in [("wrong", false), ("s3cret", true)] {
            browser.eval(&format!(
                "(() => {{ document.getElementById('token').value = '{token}'; document.getElementById('token-form').requestSubmit(); }})()"
            ));
            std::thread::sleep(Duration::from_millis(300));
            browser.wait("document.getElementById('token-form').hidden", json!(hidden));
        }
        browser.wait("document.querySelectorAll('#segments > li').length", json!(6));
        assert!(browser.requests.iter().all(|url| !url.contains("s3cret")), "{:?}", browser.requests);
    });
}
