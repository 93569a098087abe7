//! Rulesets in which something is, or is not, done to each packet over `lo`.

use windlass_filter::finding;
use windlass_sys::netlink::{
    Chain, Expression, FAMILY_INET, FAMILY_IPV4, Hook, Rule, Ruleset, Set, Verdict,
};

fn chain(name: &str, hook: Option<(u32, &str)>) -> Chain {
    let hook = hook.map(|(number, kind)| Hook {
        number,
        kind: kind.into(),
        devices: Vec::new(),
        counts: false,
    });
    Chain {
        family: FAMILY_INET,
        table: "t".into(),
        name: name.into(),
        hook,
    }
}

fn rule(chain: &str, expressions: impl Into<Vec<Expression>>) -> Rule {
    Rule {
        family: FAMILY_INET,
        table: "t".into(),
        chain: chain.into(),
        handle: 7,
        expressions: expressions.into(),
    }
}

/// `iifname NAME` or `oifname NAME`, or unequal to it.
fn interface(key: u32, operation: u32, name: &str) -> [Expression; 2] {
    let mut value = name.as_bytes().to_vec();
    value.resize(16, 0);
    [
        Expression::Meta { key, register: 1 },
        Expression::Compare {
            register: 1,
            operation,
            value,
        },
    ]
}

fn counter() -> Expression {
    Expression::Does("counter".into())
}

fn judged(hook: (u32, &str), rules: Vec<Rule>) -> Option<String> {
    finding(&Ruleset {
        chains: vec![chain("c", Some(hook)), chain("d", None)],
        rules,
        sets: Vec::new(),
    })
}

/// A counter is found where packets over `lo` pass it, and only there.
#[test]
fn counters_are_found_where_packets_pass() {
    let one = |hook| judged(hook, vec![rule("c", [counter()])]);
    assert_eq!(
        one((1, "filter")).as_deref(),
        Some("nftables inet t c, handle 7: counter")
    );
    assert!(one((3, "route")).is_some() && one((4, "filter")).is_some());
    assert!(one((2, "filter")).is_none(), "forwarding");
    assert!(one((3, "nat")).is_none(), "the first packet only");
    assert!(
        judged((1, "filter"), vec![rule("d", [counter()])]).is_none(),
        "nobody jumps"
    );
}

/// Rules about other interfaces are not about `lo`, whichever way they say so.
#[test]
fn other_interfaces_do_not_matter() {
    let found = |hook, key, operation, name: &str| {
        let expressions = [&interface(key, operation, name)[..], &[counter()]].concat();
        judged((hook, "filter"), vec![rule("c", expressions)]).is_some()
    };
    assert!(found(1, 6, 0, "lo") && !found(1, 6, 0, "eth0"));
    assert!(!found(1, 6, 1, "lo") && found(1, 6, 1, "eth0"));
    assert!(found(3, 7, 0, "lo") && !found(3, 7, 0, "eth0"));
    assert!(!found(3, 6, 0, "lo"), "what is sent came in nowhere");
    assert!(found(3, 6, 1, "lo"), "so it did not come in by lo");
    let other_register = [
        Expression::Meta {
            key: 6,
            register: 2,
        },
        interface(6, 0, "eth0")[1].clone(),
        counter(),
    ];
    assert!(judged((1, "filter"), vec![rule("c", other_register)]).is_some());
}

/// What is accepted for certain passes nothing behind it in that chain; what may be does.
#[test]
fn certain_verdicts_end_a_chain() {
    let accept = Expression::Verdict(Verdict::Final);
    let sure = [&interface(6, 0, "lo")[..], std::slice::from_ref(&accept)].concat();
    let maybe = vec![Expression::Match, accept];
    let behind = |first: Vec<Expression>| {
        judged(
            (1, "filter"),
            vec![rule("c", first), rule("c", [counter()])],
        )
        .is_some()
    };
    assert!(!behind(sure.clone()) && behind(maybe));
    let jump = |to: Verdict, inner: Vec<Expression>| {
        let rules = vec![
            rule("c", [Expression::Verdict(to)]),
            rule("c", [counter()]),
            rule("d", inner),
        ];
        judged((1, "filter"), rules).is_some()
    };
    assert!(!jump(Verdict::Jump("d".into()), sure));
    let back = vec![Expression::Verdict(Verdict::Return), counter()];
    assert!(jump(Verdict::Jump("d".into()), back.clone()));
    assert!(!jump(Verdict::Goto("d".into()), back));
    assert!(jump(Verdict::Jump("d".into()), vec![counter()]));
}

/// Maps of verdicts may lead to any chain of the table; elements of sets do what their set says.
#[test]
fn sets_and_maps_are_followed() {
    let lookup = |verdict| Expression::Lookup {
        set: "s".into(),
        verdict,
    };
    let rules = |verdict| vec![rule("c", [lookup(verdict)]), rule("d", [counter()])];
    assert!(judged((1, "filter"), rules(true)).is_some());
    assert!(judged((1, "filter"), rules(false)).is_none());
    let with = finding(&Ruleset {
        chains: vec![chain("c", Some((1, "filter")))],
        rules: vec![rule("c", [lookup(false)])],
        sets: vec![Set {
            family: FAMILY_INET,
            table: "t".into(),
            name: "s".into(),
            does: vec!["quota".into()],
        }],
    });
    assert_eq!(
        with.as_deref(),
        Some("nftables inet t c, handle 7: quota of set s")
    );
}

/// Counters of iptables are everywhere and mean nothing; its matches do. Chains that jump in circles end.
#[test]
fn iptables_and_circles() {
    let of = |expression| {
        let mut chain = chain("INPUT", Some((1, "filter")));
        let mut rule = rule("INPUT", [expression]);
        (chain.family, rule.family) = (FAMILY_IPV4, FAMILY_IPV4);
        (chain.table, rule.table) = ("filter".into(), "filter".into());
        finding(&Ruleset {
            chains: vec![chain],
            rules: vec![rule],
            sets: Vec::new(),
        })
    };
    assert!(of(counter()).is_none());
    assert!(of(Expression::Xtables("quota".into())).is_some());
    assert!(of(Expression::Xtables("comment".into())).is_none());
    let circle = Expression::Verdict(Verdict::Jump("c".into()));
    assert!(judged((1, "filter"), vec![rule("c", [circle])]).is_some());
}
