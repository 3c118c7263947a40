//! Random sequences of commands: no stage is run twice unless a person allows it.

use super::*;

/// A small generator, so that a sequence can be run again by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn random_sequences_run_no_stage_twice_without_somebodys_word() {
    for seed in 0..2_000_u64 {
        let mut random = Random(seed);
        let on_failure = OnFailure::ALL[random.below(3)];
        let mut rig = Rig::new(3, 3, |spec| (spec.max_concurrency, spec.on_failure) = (2, on_failure));
        rig.must(Command::Start);
        // How often each stage of each task was begun, and how often somebody allowed it.
        let mut begun = [[0_u32; 3]; 3];
        let mut allowed = [[1_u32; 3]; 3];
        let count = |rig: &Rig, begun: &mut [[u32; 3]; 3]| {
            for (task, stage) in rig.begun() {
                begun[task][stage] += 1;
            }
        };
        count(&rig, &mut begun);
        for _ in 0..60 {
            let at = random.below(3);
            let in_flight = rig.task(at).in_flight().map(|(_, job)| job);
            let command = match random.below(14) {
                0 => Command::Pause,
                1 => Command::Resume,
                2 => Command::PauseTask(id(at)),
                3 => Command::ResumeTask(id(at)),
                4 if random.below(6) == 0 => Command::CancelTask(id(at)),
                5 => Command::TakenOver,
                6 if random.below(4) == 0 => Command::LockLost(id(at), rig.task(at).lock),
                7 => Command::Resolve {
                    task: id(at),
                    stage: random.below(3),
                    job: None,
                    resolution: [Resolution::NotDone, Resolution::Done(None)][random.below(2)].clone(),
                },
                8 => Command::Retry(
                    id(at),
                    Retry {
                        from: if random.below(4) == 0 { From::Start } else { From::Checkpoint },
                        ..retry()
                    },
                ),
                9 => match rig.task(at).waits_for {
                    Some(job) => Command::OlderEnded { task: id(at), job },
                    None => Command::Advance,
                },
                10 => match in_flight {
                    Some(job) if random.below(3) == 0 => {
                        let end = StageEnd::Revoked(Outcome::TimedOut, "silent".into());
                        Command::StageEnded { task: id(at), job, end }
                    }
                    Some(job) => Command::StageEnded { task: id(at), job, end: broken() },
                    None => Command::Advance,
                },
                _ => match in_flight {
                    Some(job) => Command::StageEnded { task: id(at), job, end: StageEnd::Completed(None) },
                    None => Command::Advance,
                },
            };
            // Now and then all that are under way end together.
            let together: Vec<_> = (0..3)
                .filter(|at| rig.task(*at).in_flight().is_some())
                .map(|at| (at, if random.below(4) == 0 { broken() } else { StageEnd::Completed(None) }))
                .collect();
            if random.below(8) == 0 && together.len() > 1 {
                rig.end_together(&together);
                count(&rig, &mut begun);
                runs_no_stage_twice(seed, &begun, &allowed);
                continue;
            }
            let before = rig.state.clone();
            let retried = matches!(command, Command::Retry(..));
            if rig.apply(command).is_err() {
                assert_eq!(rig.state, before, "seed {seed}: a refusal changes nothing");
                continue;
            }
            if retried {
                // The word of a person: every stage that is not completed may be run once more.
                let completed = rig.task(at).completed();
                for (stage, allowed) in allowed[at].iter_mut().enumerate().skip(completed) {
                    *allowed = begun[at][stage] + 1;
                }
            }
            count(&rig, &mut begun);
            runs_no_stage_twice(seed, &begun, &allowed);
        }
    }
}

fn runs_no_stage_twice(seed: u64, begun: &[[u32; 3]; 3], allowed: &[[u32; 3]; 3]) {
    for (task, (begun, allowed)) in begun.iter().zip(allowed).enumerate() {
        for (begun, allowed) in begun.iter().zip(allowed) {
            assert!(begun <= allowed, "seed {seed}: a stage of task {task} was run twice");
        }
    }
}
