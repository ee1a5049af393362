import { type Look, setLook, useLook } from "../look";
import { settingsWords as words } from "./words";

interface Choice<Name extends keyof Look> {
  name: Name;
  title: string;
  values: Record<Look[Name], string>;
}

export function LookPanel() {
  return (
    <div className="st-look">
      <Choices name="theme" title={words.theme} values={words.themes} />
      <Choices name="density" title={words.density} values={words.densities} />
      <Choices name="enter" title={words.enter} values={words.enters} />
      <Choices name="motion" title={words.motion} values={words.motions} />
      <Choices name="letters" title={words.letters} values={words.lettersValues} />
    </div>
  );
}

function Choices<Name extends keyof Look>({ name, title, values }: Choice<Name>) {
  const look = useLook();
  return (
    <fieldset className="st-choice">
      <legend>{title}</legend>
      {(Object.entries(values) as [Look[Name], string][]).map(([value, label]) => (
        <label key={value}>
          <input
            type="radio"
            name={name}
            value={value}
            checked={look[name] === value}
            onChange={() => setLook({ [name]: value } as Partial<Look>)}
          />{" "}
          {label}
        </label>
      ))}
    </fieldset>
  );
}
