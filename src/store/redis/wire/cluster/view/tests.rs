use super::*;

/// Ranges of slots, each with the host, the port and the id of its master.
type Slots<'a> = Vec<(u16, u16, &'a str, u16, &'a str)>;

fn answers(slots: Slots<'_>, nodes: &str, info: &str) -> Vec<Value> {
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let slots = slots.into_iter().map(|(first, last, host, port, id)| {
        let master = vec![text(host), Value::Int(port.into()), text(id)];
        Value::Array(vec![
            Value::Int(first.into()),
            Value::Int(last.into()),
            Value::Array(master),
        ])
    });
    vec![Value::Array(slots.collect()), text(nodes), text(info)]
}

fn address(text: &str) -> Address {
    Address::parse(text).unwrap()
}

#[test]
fn a_view_knows_owners_spare_masters_and_moving_slots() {
    let nodes = "a 10.0.0.1:1@11 myself,master - 0 0 1 connected 0-99 [5->-c]\n\
                 b 10.0.0.2:2@12,name master - 0 0 2 connected 100-16383\n\
                 c 10.0.0.3:3@13 master - 0 0 3 connected\n\
                 d 10.0.0.4:4@14 slave b 0 0 2 connected\n\
                 e :0@0 master,noaddr - 0 0 0 disconnected\n";
    let info = "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_current_epoch:7\r\n";
    let slots = vec![(100, 16_383, "10.0.0.2", 2, "b"), (0, 99, "", 1, "a")];
    let gone = vec![(100, 16_383, "", 0, "b"), (0, 99, "", 1, "a")];
    let partial = ClusterView::read(&address("10.0.0.1:1"), answers(gone, nodes, info)).unwrap();
    assert_eq!((partial.served(), partial.owner(100)), (100, None));
    assert_eq!(partial.gaps(), [100..=16_383]);
    let view = ClusterView::read(&address("10.0.0.1:1"), answers(slots, nodes, info)).unwrap();
    assert_eq!(view.owner(0), Some(&address("10.0.0.1:1")));
    assert_eq!(view.owner(99), Some(&address("10.0.0.1:1")));
    assert_eq!(view.owner(100), Some(&address("10.0.0.2:2")));
    assert_eq!(view.owner(16_383), Some(&address("10.0.0.2:2")));
    assert_eq!(view.gaps(), []);
    let is_called = |view: &ClusterView, nodes: &[&str]| {
        let nodes = Vec::from_iter(nodes.iter().map(|node| address(node)));
        assert_eq!(view.nodes(), nodes.iter().collect());
    };
    is_called(&view, &["10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"]);
    assert!(view.is_healthy() && view.epoch == 7);
    assert_eq!(view.moves_to(5), Some(&address("10.0.0.3:3")));
    let nodes = nodes.replace(" [5->-c]", "").replace("myself,", "");
    let nodes = nodes.replace("c 10.0.0.3:3@13 master", "c :3@13 myself,master");
    let nodes = nodes.replace("3 connected", "3 connected [5-<-a]");
    let slots_of_c = vec![(100, 16_383, "10.0.0.2", 2, "b")];
    let target = ClusterView::read(&address("a:3"), answers(slots_of_c, &nodes, info)).unwrap();
    assert_eq!(target.moves_to(5), Some(&address("a:3")));
    // A mark that was left at another node.
    let mut stale = view.clone();
    let left = SlotMove {
        is_of_owner: false,
        to: "d".into(),
    };
    stale.moving.insert(5, left);
    for views in [[view.clone(), stale.clone()], [stale, view.clone()]] {
        let latest = ClusterView::latest(&views).unwrap();
        assert_eq!(latest.moves_to(5), Some(&address("10.0.0.3:3")));
    }
    assert!(!view.is_as_still_as(&view));
    // In a cluster that calls its nodes by names, one may have none.
    let slots = vec![(0, 99, "one", 6379, "a"), (100, 16_383, "?", 6379, "b")];
    let unnamed = "a 10.0.0.1:6379@1,one myself,master - 0 0 1 connected 0-99\n\
                   b 10.0.0.2:6379@1 master - 0 0 2 connected 100-16383\n";
    let view = ClusterView::read(&address("one:6379"), answers(slots, unnamed, info)).unwrap();
    is_called(&view, &["one:6379", "10.0.0.2:6379"]);
    assert_eq!(
        (view.kept_slots(&view), partial.kept_slots(&view)),
        (16_384, 100)
    );
    let mixed = vec![
        (0, 9, "h", 1, "b"),
        (50, 149, "h", 2, "a"),
        (150, 199, "h", 1, "b"),
    ];
    let mixed = ClusterView::read(&address("h:1"), answers(mixed, "", info)).unwrap();
    assert_eq!(
        (view.kept_slots(&mixed), mixed.kept_slots(&view)),
        (100, 100)
    );
    assert_eq!(mixed.gaps(), [10..=49, 200..=16_383]);
    let none = ClusterView::default();
    let all_at = |id, host| {
        let answers = answers(vec![(0, SLOTS - 1, host, 1, id)], "", info);
        ClusterView::read(&address("h:1"), answers).unwrap()
    };
    assert!(all_at("b", "h").has_other_owners(&all_at("a", "h")));
    assert!(!all_at("a", "named").has_other_owners(&all_at("a", "h")));
    assert!(view.has_other_owners(&partial));
    assert!(
        [&view, &partial]
            .iter()
            .all(|view| !view.has_other_owners(&none))
    );
    assert!(!partial.has_other_owners(&view) && !view.has_other_owners(&view));
    // A failover, and another one back.
    let at_epoch = |epoch| {
        let nodes = format!("a h:1@2 myself,master - 0 0 {epoch} connected 0-16383\n");
        let slots = vec![(0, SLOTS - 1, "h", 1, "a")];
        ClusterView::read(&address("h:1"), answers(slots, &nodes, info)).unwrap()
    };
    assert!(at_epoch(3).has_other_owners(&at_epoch(1)));
    // A slot that came from another master raises the epoch too.
    let nodes = "a h:1@2 myself,master - 0 0 1 connected 1-16383\n\
                 b h:3@4 master - 0 0 2 connected 0\n";
    let slots = vec![(0, 0, "h", 3, "b"), (1, SLOTS - 1, "h", 1, "a")];
    let moving = ClusterView::read(&address("h:1"), answers(slots, nodes, info)).unwrap();
    let slots = vec![(0, 1, "h", 3, "b"), (2, SLOTS - 1, "h", 1, "a")];
    let nodes = nodes.replace("0 0 2 connected 0", "0 0 5 connected 0-1");
    let moved = ClusterView::read(&address("h:1"), answers(slots, &nodes, info)).unwrap();
    assert!(!moved.has_other_owners(&moving));
    assert!(!at_epoch(3).has_other_owners(&at_epoch(3)));
    let mut behind = at_epoch(1);
    behind.keep_promotions(&at_epoch(3));
    assert!(!at_epoch(3).has_other_owners(&behind));
    // Called by names, a master without slots is, too.
    let named = "a 10.0.0.1:1@11,one myself,master - 0 0 1 connected 0-16383\n\
                 b 10.0.0.2:2@12,two,shard-id=x master - 0 0 2 connected\n";
    let slots = vec![(0, 16_383, "one", 1, "a")];
    let view = ClusterView::read(&address("one:1"), answers(slots, named, info)).unwrap();
    is_called(&view, &["one:1", "two:2"]);
}

#[test]
fn a_healthy_opinion_of_the_latest_epoch_counts() {
    let view = |last, ok: &str, epoch: u64| {
        let info = format!("cluster_state:{ok}\r\ncluster_current_epoch:{epoch}\r\n");
        let slots = vec![(0, last, "h", 1, "a")];
        ClusterView::read(&address("h:1"), answers(slots, "", &info)).unwrap()
    };
    let all = SLOTS - 1;
    let opinions = vec![
        view(all, "ok", 1),
        view(all, "ok", 2),
        view(all, "fail", 3),
        view(all - 1, "ok", 4),
    ];
    let latest = ClusterView::latest(&opinions).unwrap();
    assert_eq!(latest.epoch, 2);
    assert_eq!(latest.owner(5), Some(&address("h:1")));
    assert_eq!(ClusterView::latest(&[]), None);
    assert_eq!(view(10, "ok", 0).owner(11), None);
}

#[test]
fn a_master_has_the_address_that_most_other_nodes_report() {
    let info = "cluster_state:ok\r\ncluster_current_epoch:1\r\n";
    // The map of `own`, in which `a` serves and `b` and `c` do not.
    let view = |own: &str, a: &str, [b, c]: [&str; 2]| {
        let line = |(id, host)| {
            let myself = if id == own { "myself," } else { "" };
            format!("{id} {host}:1@11 {myself}master - 0 0 1 connected\n")
        };
        let nodes = [("a", a), ("b", b), ("c", c)].map(line).concat();
        let slots = vec![(0, SLOTS - 1, a, 1, "a")];
        ClusterView::read(&address("h:1"), answers(slots, &nodes, info)).unwrap()
    };
    let of = |views: &[ClusterView]| {
        let latest = ClusterView::latest(views).unwrap();
        let owner = latest.owner(0).unwrap().host.clone();
        let nodes = latest.nodes().into_iter().map(|node| node.host.clone());
        (owner, nodes.collect::<Vec<_>>().join(" "))
    };
    let is = |owner: &str, nodes: &str| (owner.to_owned(), nodes.to_owned());
    // Each has started at another address and reports its former one; one has not heard of all yet.
    let views = [
        view("b", "a2", ["b1", "c2"]),
        view("c", "a2", ["b2", "c1"]),
        view("d", "a1", ["b2", "c2"]),
        view("a", "a1", ["b2", "c2"]),
    ];
    assert_eq!(of(&views), is("a2", "a2 b2 c2"));
    assert_eq!(of(&views[..1]), is("a2", "a2 b1 c2"));
    assert_eq!(of(&views[3..]), is("a1", "a1 b2 c2"));
    // One reports no hosts.
    let asked = view("b", "", ["", ""]);
    assert_eq!(of(&[asked.clone(), views[2].clone()]), is("a1", "a1 b2 c2"));
    assert_eq!(of(&[asked]), is("h", "h"));
}

#[test]
fn only_maps_of_the_cluster_in_use_are_used_or_of_one_other_at_all_addresses() {
    let view_with = |slots: Vec<(u16, u16)>, members: &str, ok: &str, epoch: u64| {
        let line = |id| format!("{id} {id}:1@11 master - 0 0 1 connected\n");
        let nodes: String = members.chars().map(line).collect();
        let info = format!("cluster_state:{ok}\r\ncluster_current_epoch:{epoch}\r\n");
        // The last one serves.
        let owner = &members[members.len() - 1..];
        let slots = Vec::from_iter(
            slots
                .into_iter()
                .map(|(first, last)| (first, last, "h", 1, owner)),
        );
        let answers = answers(slots, &nodes, &info);
        ClusterView::read(&address("h:1"), answers).unwrap()
    };
    let view = |members, ok, epoch| view_with(vec![(0, SLOTS - 1)], members, ok, epoch);
    // The epochs of those that may be used.
    let usable = |known: &ClusterView, views, all| {
        let usable = ClusterView::usable(known, views, all);
        let usable = usable.map_err(|error| error.to_string())?;
        Ok::<_, String>(Vec::from_iter(usable.iter().map(|view| view.epoch)))
    };
    let refused = |known: &ClusterView, views, all, reason: &str| {
        let refused = usable(known, views, all).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    };
    let (none, known) = (ClusterView::default(), view("abcdef", "ok", 1));
    let grown = || view("abcdefghijkl", "ok", 2);
    let partial = || view("abc", "fail", 3);
    let other = || view("fxyz", "ok", 9);
    let alone = || view_with(vec![], "q", "fail", 0);
    // In use: its own maps, whichever others there are.
    let all = vec![other(), alone(), grown(), partial()];
    assert_eq!(usable(&known, all, false), Ok(vec![3, 2]));
    // Half of its nodes were replaced, or new ones met.
    assert_eq!(
        usable(&known, vec![view("abclmn", "ok", 4)], false),
        Ok(vec![4])
    );
    refused(
        &known,
        vec![view("ablmno", "ok", 4)],
        false,
        "belongs to another cluster",
    );
    // More have left, but those that serve are the same, also if those that left are a cluster by now.
    let smaller = || view("xf", "ok", 4);
    assert_eq!(usable(&known, vec![smaller()], false), Ok(vec![4]));
    let left = view("abcdez", "ok", 9);
    assert_eq!(usable(&known, vec![smaller(), left], false), Ok(vec![4]));
    let half = view_with(vec![(0, SLOTS / 2 - 1)], "xf", "ok", 4);
    refused(&known, vec![half], false, "belongs to another cluster");
    let meets = "1 h:1@11 master,handshake - 0 0 1 connected\n";
    let slots = vec![(0, SLOTS - 1, "h", 1, "0")];
    let met = ClusterView::read(&address("h:1"), answers(slots, meets, "")).unwrap();
    assert_eq!(met.members.len(), 0);
    refused(
        &known,
        vec![view("fx", "ok", 4)],
        false,
        "belongs to another cluster",
    );
    // A node that was reset has no map of it.
    let reset = vec![view_with(vec![], "a", "ok", 9)];
    refused(&known, reset, true, "no node serves slots");
    let reset = vec![view_with(vec![], "a", "ok", 9)];
    refused(&known, reset, false, "that serves no slots");
    // Another cluster only if every address belongs to it.
    let foreign = || view("xyz", "ok", 9);
    refused(
        &known,
        vec![foreign()],
        false,
        "only h:1 (masters h:1, x:1, y:1) answers",
    );
    refused(
        &known,
        vec![view("xyz", "fail", 0)],
        false,
        "belongs to another cluster",
    );
    assert_eq!(
        usable(&known, vec![foreign(), foreign()], true),
        Ok(vec![9, 9])
    );
    // None in use: one cluster, beside nodes that serve in none.
    assert_eq!(usable(&none, vec![grown(), alone()], false), Ok(vec![2]));
    assert_eq!(usable(&none, vec![alone()], false), Ok(vec![0]));
    let empty = vec![alone(), view_with(vec![], "r", "fail", 0)];
    refused(&none, empty, true, "create the cluster");
    for (known, all) in [(&none, false), (&none, true), (&view("q", "ok", 0), true)] {
        refused(known, vec![grown(), other()], all, "two clusters");
        refused(known, vec![partial(), other()], all, "two clusters");
    }
    assert_eq!(usable(&none, Vec::new(), true), Ok(Vec::new()));
    assert_eq!(usable(&known, Vec::new(), false), Ok(Vec::new()));
}

#[test]
fn a_server_that_is_no_cluster_returns_no_map() {
    assert!(ClusterView::read(&address("h:1"), vec![Value::Nil]).is_err());
}
