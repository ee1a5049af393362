import "./jitless";
import "./ui/tokens.css";
import "./ui/base.css";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { startLook } from "./look";

startLook();
createRoot(document.getElementById("root")!).render(<App />);
