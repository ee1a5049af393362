// Imported first: without it, the probe by which zod learns whether it may compile would be reported as a breach of the
// page's policy, which forbids code made of text.
import { config } from "zod/v4/core";

config({ jitless: true });
