import "./jitless";
import "./ui/tokens.css";
import "./ui/base.css";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { startLook } from "./look";
import { signIn } from "./sign-in";

startLook();
void signIn().then(() => createRoot(document.getElementById("root")!).render(<App />));
