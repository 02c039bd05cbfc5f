//! The frozen schemas: what readers elsewhere were built against must not change by accident.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use apache_avro::Schema;
use apache_avro::rabin::Rabin;
use serde_json::Value;
use strobe_event::codec::{
    SCHEMA_ID_ALERT, SCHEMA_ID_ALERT_ANSWER, SCHEMA_ID_AUDIT, SCHEMA_ID_CONFIG_SET, SCHEMA_ID_COVERAGE,
    SCHEMA_ID_HOST, SCHEMA_ID_HOST_REPORT, SCHEMA_ID_PLAN, SCHEMA_ID_RAW_BATCH, SCHEMA_ID_REQUEST,
    SCHEMA_ID_REQUEST_STATE, SCHEMA_ID_RUN_EVENT, SCHEMA_ID_SAMPLES_BATCH, SCHEMA_ID_SAMPLES_BATCH_1,
    SCHEMA_ID_SIGNED_CONFIG, SCHEMA_ID_SIGNED_REQUEST, SCHEMA_ID_STACK_SCHEMA, SCHEMA_ID_TUNER, schema_text,
};

const IDS: [u32; 18] = [
    SCHEMA_ID_RAW_BATCH,
    SCHEMA_ID_SAMPLES_BATCH_1,
    SCHEMA_ID_RUN_EVENT,
    SCHEMA_ID_COVERAGE,
    SCHEMA_ID_PLAN,
    SCHEMA_ID_HOST,
    SCHEMA_ID_TUNER,
    SCHEMA_ID_SAMPLES_BATCH,
    SCHEMA_ID_STACK_SCHEMA,
    SCHEMA_ID_REQUEST,
    SCHEMA_ID_SIGNED_REQUEST,
    SCHEMA_ID_REQUEST_STATE,
    SCHEMA_ID_HOST_REPORT,
    SCHEMA_ID_ALERT,
    SCHEMA_ID_ALERT_ANSWER,
    SCHEMA_ID_AUDIT,
    SCHEMA_ID_CONFIG_SET,
    SCHEMA_ID_SIGNED_CONFIG,
];

fn json(id: u32) -> Value {
    serde_json::from_str(schema_text(id).expect("a frozen schema")).expect("JSON")
}

/// Calls `visit` with every object of a schema.
fn walk(schema: &Value, visit: &mut impl FnMut(&Value)) {
    match schema {
        Value::Object(members) => {
            visit(schema);
            members.values().for_each(|member| walk(member, visit));
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        _ => {}
    }
}

/// Returns the definition of the named type.
fn definition(schema: &Value, name: &str) -> Value {
    let mut found = None;
    walk(schema, &mut |object| {
        if object["name"] == name && (object["type"] == "record" || object["type"] == "fixed") {
            let mut object = object.clone();
            object.as_object_mut().expect("an object").remove("namespace");
            found = Some(object);
        }
    });
    found.unwrap_or_else(|| panic!("no `{name}`"))
}

/// Checks the fingerprints (CRC-64-AVRO of the canonical form): a change of the wire needs a new schema with a new id.
#[test]
fn the_wire_is_frozen() {
    let fingerprint = |id| {
        let schema =
            Schema::parse_str(schema_text(id).expect("a frozen schema")).expect("a schema that parses");
        schema.fingerprint::<Rabin>().to_string()
    };
    assert_eq!(
        IDS,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]
    );
    assert_eq!(
        IDS.map(fingerprint),
        [
            "601bbb565985230f",
            "45e4b3eda189e051",
            "e651e4ce213692e4",
            "fb47ccf0723c59d7",
            "9c54d15f369a526f",
            "128f052f5ba8b079",
            "2b42e4f260e9204a",
            "d981254457f0d3b2",
            "77c0b0842a1223da",
            "6229ba2b20cb6901",
            "d663ecb75c303699",
            "3272eb26e268b0d3",
            "7900f5aae64bfe00",
            "8898389f99043e01",
            "802d4b736e5819b4",
            "09655c1b99c66b57",
            "786a64a9f8071762",
            "6d754947ab7bca24"
        ]
    );
    assert_eq!(schema_text(0), None);
    assert_eq!(schema_text(19), None);
}

/// Checks that what stands in several schemas is the same in each.
#[test]
fn shared_records_are_the_same() {
    let [
        raw,
        first,
        event,
        _,
        plan,
        _,
        tuner,
        samples,
        _,
        request,
        signed,
        state,
        report,
        _,
        answer,
        ..,
    ] = IDS.map(json);
    for samples in [&first, &samples] {
        assert_eq!(definition(&raw, "RawBatch"), definition(samples, "RawBatch"));
        assert_eq!(definition(&first, "Locations"), definition(samples, "Locations"));
    }
    for name in ["RunHead", "RunId", "DropCount"] {
        assert_eq!(definition(&raw, name), definition(&event, name), "{name}");
    }
    assert_eq!(definition(&plan, "Plan"), definition(&tuner, "Plan"));
    for of_request in [&signed, &state, &report, &answer] {
        assert_eq!(
            definition(&request, "RequestId"),
            definition(of_request, "RequestId")
        );
    }
    for of_run in [&state, &report] {
        assert_eq!(definition(&raw, "RunId"), definition(of_run, "RunId"));
    }
    assert_eq!(definition(&state, "AgentLife"), definition(&report, "AgentLife"));
}

/// Checks that every record and field says what it is, and that all names are in the namespace.
#[test]
fn every_field_is_documented() {
    for id in IDS {
        let schema = json(id);
        assert_eq!(schema["namespace"], "org.strobe");
        let mut fields = 0;
        walk(&schema, &mut |object| {
            if let Some(of_record) = object["fields"].as_array() {
                for described in of_record.iter().chain([object]) {
                    let doc = described["doc"].as_str().unwrap_or_default();
                    assert!(
                        doc.ends_with('.') && doc.len() > 5,
                        "schema {id}: `{}` lacks its doc",
                        described["name"]
                    );
                }
                fields += of_record.len();
            }
        });
        let least = match id {
            SCHEMA_ID_SIGNED_CONFIG => 2,
            SCHEMA_ID_SIGNED_REQUEST => 3,
            SCHEMA_ID_ALERT_ANSWER => 5,
            SCHEMA_ID_STACK_SCHEMA => 6,
            _ => 7,
        };
        assert!(fields >= least, "schema {id} has {fields} fields");
    }
}
