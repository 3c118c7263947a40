//! The private servers themselves: fresh databases, a crash survived, nothing left behind.

use std::sync::Arc;

use super::*;

#[test]
fn a_database_survives_a_crash_of_its_server_and_others_do_not_see_it() {
    let server = Arc::new(Postgres::start().unwrap());
    let (one, other) = (server.database().unwrap(), server.database().unwrap());
    one.query("create table kept (word text); insert into kept values ('here\tand there'), (null)").unwrap();
    server.stop_immediate().unwrap();
    assert!(one.query("select 1").is_err(), "it is stopped");
    server.boot().unwrap();
    assert_eq!(one.query("select word from kept order by word").unwrap(), [["here\tand there"], [""]]);
    assert!(other.query("select * from kept").is_err());
    assert_eq!(one.query("show fsync").unwrap(), [["on"]]);
    server.kill();
    server.boot().unwrap();
    assert_eq!(one.query("select count(*) from kept").unwrap(), [["2"]]);
}

#[tokio::test]
async fn the_chain_counts_what_it_mined_and_refuses_a_nonce_twice() {
    let chain = Anvil::start().await.unwrap();
    let account = &chain.accounts().await.unwrap()[3];
    let ahead = chain.send(account, 1).await.unwrap();
    let first = chain.send(account, 0).await.unwrap();
    let again = chain.send(account, 0).await.unwrap_err();
    while chain.mined(account).await.unwrap() < 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(chain.succeeded(&ahead).await.unwrap() && chain.succeeded(&first).await.unwrap(), "{again:#}");
    let late = chain.send(account, 1).await.unwrap_err();
    assert!(format!("{late:#}").contains("nonce too low"), "{late:#}");
}

#[test]
fn redis_starts_and_is_gone_when_dropped() {
    let redis = Redis::start().unwrap();
    let address = redis.url().replace("redis://", "").replace('/', "");
    assert!(TcpStream::connect(&address).is_ok());
    drop(redis);
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn redis_comes_back_empty_on_its_port_with_its_settings() {
    let redis = Redis::with(&["--maxmemory-policy", "volatile-ttl"]).unwrap();
    assert!(redis.command(&["SET", "a", "1"]).unwrap().contains("OK"));
    redis.kill();
    assert!(redis.command(&["GET", "a"]).is_err(), "it is gone");
    redis.boot().unwrap();
    assert_eq!(redis.command(&["GET", "a"]).unwrap().trim(), "");
    assert!(redis.command(&["CONFIG", "GET", "maxmemory-policy"]).unwrap().contains("volatile-ttl"));
    redis.command(&["SET", "a", "2"]).unwrap();
    redis.flush().unwrap();
    assert_eq!(redis.command(&["DBSIZE"]).unwrap().trim(), "0");
    assert!(redis.command(&["NO-SUCH-COMMAND"]).is_err());
}

#[test]
fn a_cluster_goes_on_without_one_master_and_is_whole_when_it_is_back() {
    let door = RedisClusterDoor::open().unwrap();
    let said = || {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut TcpStream::connect(door.address()).unwrap(), &mut said)
            .map(|_| said)
            .unwrap()
    };
    assert_eq!(said(), said(), "everybody gets the same one");
    let cluster = door.cluster.lock().take().unwrap();
    let master = cluster.master_of("key").unwrap();
    master.set_replicated("key", "1").unwrap();
    master.kill();
    let give_up = Instant::now() + Duration::from_secs(30);
    let heir = loop {
        match cluster.master_of("key") {
            Ok(heir) if heir.port() != master.port() => break heir,
            _ => assert!(Instant::now() < give_up, "nobody took over"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(heir.command(&["GET", "key"]).unwrap().trim(), "1");
    master.boot().unwrap();
    cluster.wait_until_whole().unwrap();
}

#[tokio::test]
async fn a_frozen_database_answers_when_it_is_thawed_by_itself() {
    let server = Arc::new(tokio::task::spawn_blocking(Postgres::start).await.unwrap().unwrap());
    let database = server.database().unwrap();
    let length = Duration::from_millis(1_500);
    let began = Instant::now();
    server.freeze(length).unwrap();
    let asked = tokio::task::spawn_blocking(move || database.query("select 1"));
    assert_eq!(asked.await.unwrap().unwrap(), [["1"]]);
    assert!(began.elapsed() >= length);
}
