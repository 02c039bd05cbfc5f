//! strobe-integration-tests
