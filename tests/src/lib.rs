//! Nothing lives here. The tests are in `tests/`: `black_box` drives the real binary on real
//! servers, `tidy` looks at the repository itself.
