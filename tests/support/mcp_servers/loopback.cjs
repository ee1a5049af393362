// Preload for servers that cannot be told where to listen: everything they open is open on 127.0.0.1 only.
const { Server } = require("node:net");
const listen = Server.prototype.listen;

Server.prototype.listen = function (first, ...rest) {
  if (first !== null && typeof first === "object" && first.port !== undefined) {
    return listen.call(this, { ...first, host: "127.0.0.1" }, ...rest);
  }
  if (Number.isInteger(Number(first))) {
    const done = rest.find((argument) => typeof argument === "function");
    return listen.call(this, { port: Number(first), host: "127.0.0.1" }, done);
  }
  return listen.call(this, first, ...rest);
};
