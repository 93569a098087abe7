// An echo server; ends when its standard input does. Argument: port.
const server = require("net").createServer({ allowHalfOpen: true }, (stream) => stream.pipe(stream));
server.listen(Number(process.argv[2]), "127.0.0.1");
process.stdin.on("end", () => process.exit(0)).resume();
