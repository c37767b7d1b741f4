//! `touchline keys` beside a running gateway, on both stores.

use std::fs::File;
use std::process::{Command, Stdio};

use harness::{IssuedKey, Protocol, Scene, Store, StoreSpec};
use serde_json::Value;

use super::{MARKETS, RANKINGS, Ran, STORES, TOUCHLINE, closed_pipe, run_beside, run_into};

async fn scene(store: Store) -> Scene {
    Scene::builder(TOUCHLINE).store(store).start().await
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[tokio::test]
async fn an_issued_key_works_at_once_and_is_listed_and_shown_without_its_secret() {
    for store in STORES {
        let mut scene = scene(store).await;
        let key = scene
            .issue_with(
                "starter",
                &["--label", "a, \"b\"", "--expires", "2099-12-31"],
            )
            .await;
        let client = scene.client(Protocol::Http1);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        assert_eq!(client.get(&key, RANKINGS).await.status, 403);
        let gateway = &scene.gateways[0];
        let run = async |arguments: &[&str]| run_beside(gateway, arguments).await.done();

        let list = json(&run(&["keys", "list", "--output", "json"]).await);
        assert_eq!(list.as_array().unwrap().len(), 1);
        assert_eq!(list[0]["id"], key.id.as_str());
        assert_eq!(list[0]["customer"], "Acme");
        assert_eq!(list[0]["label"], "a, \"b\"");
        assert_eq!(list[0]["tier"], "starter");
        assert_eq!(list[0]["state"], "active");
        assert_eq!(list[0]["expires"], "2100-01-01T00:00:00Z");

        let csv = run(&["keys", "list", "--output", "csv"]).await;
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0],
            "id,customer,label,tier,state,expires,created,updated"
        );
        let start = format!("{},Acme,\"a, \"\"b\"\"\",starter,active,", key.id);
        assert!(lines.len() == 2 && lines[1].starts_with(&start), "{csv}");

        let table = run(&["keys", "list"]).await;
        assert!(table.contains(&key.id) && table.contains("after 2099-12-31"));

        let shown = json(&run(&["keys", "show", &key.id, "--output", "json"]).await);
        assert_eq!(shown["id"], key.id.as_str());
        assert_eq!(shown["today"]["used"], 1);
        assert_eq!(shown["today"]["limit"], 1_000);
        assert_eq!(shown["today"]["remaining"], 999);
        let table = run(&["keys", "show", &key.id]).await;
        assert!(table.contains("1 of 1000"), "{table}");

        let everything = format!("{list}{csv}{table}{shown}");
        let secret = key.key.rsplit('_').next().unwrap();
        assert!(!everything.contains(secret));
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_key_is_reported_once_in_the_form_asked_for() {
    let scene = scene(Store::Embedded).await;
    let issue = ["keys", "issue", "--tier", "pro", "--customer", "Acme"];
    let ran = run_beside(&scene.gateways[0], &issue).await;
    assert!(ran.stderr.contains("cannot be shown again"), "{ran:?}");
    let table = ran.done();
    let words: Vec<&str> = table.split_whitespace().collect();
    let key = words.iter().find(|word| word.starts_with("fpd_")).unwrap();
    let answer = scene.client(Protocol::Http1).get(key, MARKETS).await;
    assert_eq!(answer.status, 200);
}

/// Whether any value or name in Redis contains that text.
async fn redis_holds(scene: &Scene, text: &str) -> bool {
    const SEARCH: &str = r"
        local readers = {
            string = {'GET'}, hash = {'HGETALL'}, set = {'SMEMBERS'},
            list = {'LRANGE', 0, -1}, zset = {'ZRANGE', 0, -1}, stream = {'XRANGE', '-', '+'}
        }
        local function holds(value)
            if type(value) ~= 'table' then
                return string.find(tostring(value), ARGV[1], 1, true) ~= nil
            end
            for _, one in ipairs(value) do
                if holds(one) then return true end
            end
            return false
        end
        for _, name in ipairs(redis.call('KEYS', '*')) do
            local kind = redis.call('TYPE', name)['ok']
            local reader = readers[kind]
            local rest = {unpack(reader, 2)}
            if holds(name) or holds(redis.call(reader[1], name, unpack(rest))) then return 1 end
        end
        return 0";
    let redis = scene.redis.as_ref().unwrap();
    match &*redis.command(&["EVAL", SEARCH, "0", text]).await.unwrap() {
        ":1\r\n" => true,
        ":0\r\n" => false,
        other => panic!("{other}"),
    }
}

fn files_hold(scene: &Scene, text: &str) -> bool {
    let files = std::fs::read_dir(scene.directory()).unwrap();
    files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains("touchline.db"))
        .any(|path| {
            let bytes = std::fs::read(path).unwrap();
            bytes
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        })
}

#[tokio::test]
async fn neither_a_key_nor_its_secret_is_stored() {
    for store in STORES {
        let scene = scene(store).await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        let secret = key.key.rsplit('_').next().unwrap();
        for (text, stored) in [(&*key.id, true), (&*key.key, false), (secret, false)] {
            let found = match store {
                Store::Embedded => files_hold(&scene, text),
                Store::Redis => redis_holds(&scene, text).await,
            };
            assert_eq!(found, stored, "{store:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_key_that_could_not_work_is_not_issued() {
    for store in STORES {
        let scene = scene(store).await;
        let issue = async |arguments: &[&str]| {
            let words = [&["keys", "issue", "--customer", "Acme"], arguments].concat();
            run_beside(&scene.gateways[0], &words).await
        };
        let message = issue(&["--tier", "gold"]).await.failed(1);
        assert!(
            message.contains("\"gold\"") && message.contains("starter, pro, enterprise"),
            "{message}"
        );
        let message = issue(&["--tier", "pro", "--expires", "2020-02-29"])
            .await
            .failed(1);
        assert!(message.contains("2020-02-29 is in the past"), "{message}");
        issue(&["--tier", "pro", "--expires", "2021-02-29"])
            .await
            .failed(2);
        issue(&[]).await.failed(2);
        let list = run_beside(&scene.gateways[0], &["keys", "list", "--output", "json"]).await;
        assert_eq!(json(&list.done()), json("[]"));
    }
}

async fn state_of(scene: &Scene, key: &IssuedKey) -> Value {
    let show = ["keys", "show", &key.id, "--output", "json"];
    json(&scene.cli(&show).await)["state"].clone()
}

#[tokio::test]
async fn revoking_needs_a_yes_and_twice_is_once() {
    for store in STORES {
        let mut scene = scene(store).await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        let message = run_beside(&scene.gateways[0], &["keys", "revoke", &key.id])
            .await
            .failed(2);
        assert!(message.contains("--yes"), "{message}");
        assert_eq!(state_of(&scene, &key).await, "active");
        assert_eq!(client.get(&key, MARKETS).await.status, 200);

        let revoke = ["keys", "revoke", &key.id, "--yes"];
        let message = run_beside(&scene.gateways[0], &revoke).await.done();
        assert_eq!(message, format!("{} is revoked\n", key.id));
        assert_eq!(client.get(&key, MARKETS).await.status, 401);
        let message = run_beside(&scene.gateways[0], &revoke).await.done();
        assert_eq!(message, format!("{} is revoked already\n", key.id));
        assert_eq!(state_of(&scene, &key).await, "revoked");
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn an_unknown_key_id_is_reported() {
    for store in STORES {
        let scene = scene(store).await;
        for command in [
            ["keys", "show", "4fZk09QwXy2B", "--output", "json"].as_slice(),
            &["keys", "revoke", "4fZk09QwXy2B", "--yes"],
        ] {
            let message = run_beside(&scene.gateways[0], command).await.failed(1);
            assert!(
                message.contains("there is no key 4fZk09QwXy2B"),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn no_key_is_made_for_an_output_that_loses_it() {
    let scene = scene(Store::Embedded).await;
    let key = scene.issue("starter").await;
    let config = &scene.gateways[0].config;
    let issue = ["keys", "issue", "--tier", "starter", "--customer", "Lost"];
    let rotate = ["keys", "rotate", &key.id, "--overlap", "0s", "--yes"];
    for arguments in [&issue[..], &rotate] {
        let mut closed = Command::new("sh");
        closed.args(["-c", r#"exec "$0" "$@" >&-"#, TOUCHLINE]);
        closed.args(arguments).arg("--config").arg(config);
        let null = run_into(config, Stdio::null(), arguments);
        for ran in [closed.output().unwrap().into(), null] {
            let message = Ran::failed(ran, 2);
            assert!(message.contains("nothing was changed"), "{message}");
        }
    }
    let listed = json(&scene.cli(&["keys", "list", "--output", "json"]).await);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
}

#[tokio::test]
async fn a_gateway_that_hangs_is_named_and_the_change_is_stored() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .gateways(2)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client_of(1, Protocol::Http1);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        scene.gateways[1].process().stop();
        let revoke = ["keys", "revoke", &key.id, "--yes"];
        let ran = run_beside(&scene.gateways[0], &revoke).await;
        assert_eq!(ran.code, Some(3), "{ran:?}");
        let names = |pid: u32| ran.stderr.contains(&format!("-{pid}-"));
        let (lives, hangs) = (
            scene.gateways[0].process().pid(),
            scene.gateways[1].process().pid(),
        );
        assert!(names(hangs) && !names(lives), "{ran:?}");
        assert!(ran.stderr.contains("the change is stored"), "{ran:?}");
        assert_eq!(state_of(&scene, &key).await, "revoked");
        scene.gateways[1].process().resume();
        assert_eq!(client.get(&key, MARKETS).await.status, 401);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_command_that_creates_an_empty_database_reports_its_absolute_path() {
    let scene = scene(Store::Embedded).await;
    let mut spec = scene.spec.clone();
    spec.store = StoreSpec::Embedded("var/keys.db".into());
    let config = scene.outside().join("relative.yaml");
    std::fs::write(&config, spec.yaml(&scene.outside().join("access.log"))).unwrap();
    let rows = scene.outside().join("keys.csv");
    std::fs::write(
        &rows,
        "customer,tier,key\nAcme,pro,acme-live-0123456789abcdef\n",
    )
    .unwrap();
    let issue = ["keys", "issue", "--tier", "pro", "--customer", "Acme"];
    for (name, arguments) in [
        ("one", &issue[..]),
        ("other", &["keys", "import", rows.to_str().unwrap()]),
    ] {
        let directory = scene.outside().join(name);
        std::fs::create_dir(&directory).unwrap();
        let run = || {
            let mut command = Command::new(TOUCHLINE);
            command.current_dir(&directory).args(arguments);
            let ran = Ran::from(command.arg("--config").arg(&config).output().unwrap());
            assert_eq!(ran.code, Some(0), "{ran:?}");
            ran.stderr.replace('\n', " ")
        };
        let database = directory.join("var/keys.db");
        let created = format!(
            "created the database {}: it has no keys",
            database.display()
        );
        let message = run();
        assert!(message.contains(&created), "{message}");
        assert!(message.contains("check the working directory"), "{message}");
        let message = run();
        assert!(!message.contains("created the database"), "{message}");
    }
}

#[tokio::test]
async fn a_change_whose_result_cannot_be_shown_is_not_to_be_repeated() {
    let scene = scene(Store::Embedded).await;
    let key = scene.issue("starter").await;
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let grant = ["keys", "grant", &key.id, "--extra", "5", "--reason", "cup"];
    for arguments in [grant.to_vec(), [&grant[..], &["--output", "json"]].concat()] {
        let message = run_into(&scene.gateways[0].config, full(), &arguments).failed(1);
        assert!(message.contains("the change is stored"), "{message}");
        assert!(message.contains("do not repeat it"), "{message}");
    }
    let show = ["keys", "show", &key.id, "--output", "json"];
    let shown = json(&scene.cli(&show).await);
    assert_eq!(
        shown["grants"]
            .as_object()
            .unwrap()
            .values()
            .next()
            .unwrap(),
        10
    );
}

#[tokio::test]
async fn an_unconfirmed_change_is_reported_also_if_its_result_cannot_be_written() {
    let mut scene = Scene::builder(TOUCHLINE).gateways(2).start().await;
    let key = scene.issue("starter").await;
    let file = scene.outside().join("keys.csv");
    let row = "key,customer,tier\nacme-live-0123456789abcdef,Acme,starter\n";
    std::fs::write(&file, row).unwrap();
    let hanging = format!("-{}-", scene.gateways[1].process().pid());
    scene.gateways[1].process().stop();
    for arguments in [
        vec!["keys", "suspend", &key.id, "--yes"],
        vec!["keys", "import", file.to_str().unwrap()],
    ] {
        let ran = run_into(&scene.gateways[0].config, closed_pipe(), &arguments);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stderr.contains(&hanging), "{ran:?}");
    }
    scene.gateways[1].process().resume();
    assert_eq!(state_of(&scene, &key).await, "suspended");
}

#[tokio::test]
async fn a_reader_that_went_away_is_no_failure_unless_a_key_is_lost() {
    let scene = scene(Store::Embedded).await;
    let key = scene.issue("starter").await;
    let run = |command: &str| {
        let words: Vec<&str> = command.split(' ').collect();
        run_into(&scene.gateways[0].config, closed_pipe(), &words)
    };
    for command in [
        "keys list",
        "keys list --output csv",
        "keys list --output json",
        "usage",
        "check",
        "--help",
    ] {
        let ran = run(command);
        assert_eq!(ran.code, Some(0), "{command}: {ran:?}");
        assert_eq!(ran.stderr, "", "{command}");
    }
    let message = run("keys issue --tier pro --customer Acme").failed(1);
    assert!(
        message.contains("was issued but could not be shown"),
        "{message}"
    );
    let message = run(&format!("keys rotate {} --overlap 1h", key.id)).failed(1);
    assert!(message.contains("the rotation was reverted"), "{message}");
    let show = ["keys", "show", &key.id, "--output", "json"];
    let shown = json(&scene.cli(&show).await);
    assert_eq!(shown["previous_until"], Value::Null);
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(answer.status, 200);
    let message = run(&format!("keys rotate {} --overlap 0s --yes", key.id)).failed(1);
    assert!(message.contains("rotate the key again"), "{message}");
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(answer.status, 401);
}
