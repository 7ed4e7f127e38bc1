//! Typed requests for methods whose answer may have more than one form on the wire.

use crate::prelude::*;
use exec_server_client::{
    protocol::{fs as wire, path::PathArg},
    requests,
};

#[tokio::test]
async fn a_typed_request_has_the_bytes_in_its_result_however_they_came() {
    let server = TestServer::start();
    let client = Client::connect(server.url()).await.expect("connect");
    let path = server.dir().join("file");
    fs::write(&path, "text").expect("write");
    let path = PathArg::new(path.display().to_string());
    let file = wire::FileTarget { path, follow_symlinks: None, sandbox: None };
    let params = wire::ReadFileParams { file: file.clone(), offset: None, len: None, lines: None };
    let read = client.request::<requests::FsReadFile>(&params).await.expect("read");
    assert_eq!(read.data_base64, "dGV4dA==");
    let handle_id = "typed".to_owned();
    let open = wire::OpenParams { handle_id: handle_id.clone(), file };
    client.request::<requests::FsOpen>(&open).await.expect("open");
    let params = wire::ReadBlockParams { handle_id, offset: 1, len: 2, holes: false };
    let block = client.request::<requests::FsReadBlock>(&params).await.expect("read");
    assert_eq!(block.chunk, "ZXg=");
}
