//! Text that reads like instructions to a model, in the major languages, and text invisible to people.
//!
//! This room marks text but never decides: a page about such attacks is marked as well. Each family has
//! triggers, and every text that its pattern matches contains one of them; only the text around a trigger is
//! matched.

use std::{ops::Range, sync::LazyLock};

use nonet_base::{
    disguises::flat,
    text::{self, HiddenChar},
};
use regex::{Match, Regex};

/// How many bytes before and after a trigger are examined.
const BEFORE: usize = 120;
const BEHIND: usize = 240;

/// A kind of instruction.
pub(super) struct Family {
    /// The name shown for it.
    pub what: &'static str,
    /// Words, one of which is in every match. ASCII letters match in any case; a word with other letters that
    /// have a case omits its first letter.
    pub triggers: &'static [&'static str],
    /// Whether it is reported for definitions only: results may mention it.
    pub in_definitions: bool,
    /// Whether lines matter to its pattern. The other patterns also match a sentence that is broken into
    /// lines.
    in_lines: bool,
    pattern: LazyLock<Pattern>,
}

/// Alternatives, each a case-insensitive expression of its own: most of them find out at once that a literal
/// text is missing, where all together need a state for nearly every character.
struct Pattern(Vec<Regex>);

impl Pattern {
    /// Returns the first match, and of several at the same place that of the first alternative.
    fn find_at<'t>(&self, text: &'t str, start: usize) -> Option<Match<'t>> {
        self.0.iter().filter_map(|one| one.find_at(text, start)).min_by_key(Match::start)
    }
}

/// Returns a case-insensitive pattern of alternatives.
fn pattern(alternatives: &[&str]) -> Pattern {
    let regex = |one: &&str| Regex::new(&format!("(?i){one}")).expect("a test uses every pattern");
    Pattern(alternatives.iter().map(regex).collect())
}

pub(super) static FAMILIES: [Family; 8] = [
    Family {
        what: "tells the model to ignore its instructions",
        triggers: &[
            "ignore",
            "ignora",
            "ignorier",
            "disregard",
            "forget ",
            "override",
            "overrul",
            "supersede",
            "do not follow",
            "do not obey",
            "stop following",
            "stop obeying",
            "cease following",
            "discard",
            "dismiss",
            "abandon",
            "set aside",
            "no attention to",
            "instructions are",
            "prompts are",
            "instructions have",
            "guidelines are",
            "your new ",
            "your real ",
            "your actual ",
            "your true ",
            "vergiss",
            "vergesse",
            "missacht",
            "oublie",
            "ne tiens pas compte",
            "ne tenez pas compte",
            "olvid",
            "haz caso omiso",
            "descarta",
            "esque",
            "desconsider",
            "dimentica",
            "trascura",
            "negeer",
            "vergeet",
            "zignoruj",
            "zapomnij",
            "talimat",
            "гнорируй",
            "абудь",
            "е обращай",
            "忽略",
            "无视",
            "無視",
            "忽視",
            "忘记",
            "忘掉",
            "忘れ",
            "무시",
            "잊",
            "تجاهل",
            "अनदेखा",
            "नज़रअंदाज़",
            "bỏ qua",
            "phớt lờ",
            "hãy quên",
            "abaikan",
            "lupakan",
            "гноруй",
            "е звертай",
            "نادیده",
            "فراموش کن",
        ],
        in_definitions: false,
        in_lines: false,
        pattern: LazyLock::new(|| {
            pattern(&[
                r"\b(?:ignore|disregard|forget|override|do not follow|do not obey)\b[^.!?\n]{0,30}\b(?:previous|prior|above|earlier|preceding|existing|original|all|any|your|system|former|other)\b[^.!?\n]{0,40}\b(?:instructions?|prompts?|guidelines?|directions?|directives?|guardrails?|system message|polic(?:y|ies)|rules? (?:you|above|given)|conversation)\b",
                r"\b(?:ignore|disregard|forget)\s+(?:everything|all|anything|whatever|what)\s+(?:above|before|previously|(?:you|the user|your (?:user|developers?))\s+(?:were|was|has|have|had|know|knew|learned|asked|said|told|wants?)|that (?:was|came))",
                r"\b(?:ignore|disregard|forget|discard|dismiss|abandon|set aside|pay no attention to|stop (?:following|obeying)|cease following)\b[^.!?\n]{0,30}\b(?:(?:previous|prior|above|earlier|existing|original|initial|system)\s+(?:instructions?|prompts?|guidelines?|directives?)|(?:instructions?|prompts?|guidelines?|directives?|commands?|orders?|rules)\b[^.!?\n]{0,16}\b(?:above|before (?:this|that)|you (?:were|have been) given|given to you|so far|up to now))\b",
                r"\b(?:previous|prior|above|earlier|original|all other)\s+(?:instructions?|prompts?|guidelines?|directives?)\s+(?:are|is|were|have been)\s+(?:now\s+)?(?:void|null|cancel\w+|obsolete|outdated|superseded|revoked|invalid|lifted|suspended|no longer)",
                r"\b(?:supersedes?|overrides?|overrules?)\s+(?:all|any|your|every)\s+(?:of\s+(?:the|your)\s+)?(?:previous|prior|earlier|other)\s+(?:instructions?|prompts?|guidelines)",
                r"\byour (?:new|real|actual|true) (?:task|goal|objective|mission|purpose|job|instructions?) (?:is|are) (?:now )?to\b",
                // Without spaces, as letters set apart read.
                r"\b(?:please)?(?:ignore|disregard|forget)(?:all|any|the|your|my|of|these|every){0,3}(?:previous|prior|above|earlier|preceding|existing|original|system)(?:and[a-z]{0,12})?(?:instructions?|prompts?|guidelines?|directives?|rules)\b",
                r"\b(?:ignorier|missacht|vergiss|vergesse)\p{L}*\b[^.!?\n]{0,50}\b(?:anweisung|instruktion|vorgabe|anleitung|systemprompt|prompt|regeln)",
                r"\b(?:ignorez?|oubliez?|ne tenez pas compte|ne tiens pas compte)\b[^.!?\n]{0,50}\b(?:instructions|consignes?|directives?|règles|prompt)",
                r"\b(?:ignora|ignore|olvid|descarta|haz caso omiso)\p{L}*\b[^.!?\n]{0,50}\b(?:instrucci|indicaci|directric|reglas|órdenes|prompt)",
                r"\b(?:ignor[ae]|esque[çc]a|desconsider[ae])\p{L}*\b[^.!?\n]{0,50}\b(?:instruç|instruco|diretriz|regras|ordens|prompt)",
                r"\b(?:ignora|dimentica|trascura)\p{L}*\b[^.!?\n]{0,50}\b(?:istruzion|regole|direttive|comandi|prompt)",
                r"\b(?:negeer|vergeet)\b[^.!?\n]{0,50}\b(?:instructies|opdrachten|regels|prompt)",
                r"\b(?:zignoruj|zapomnij)\b[^.!?\n]{0,50}(?:instrukcj|polece|zasad|prompt)",
                r"talimat\p{L}*[^.!?\n]{0,30}(?:yok say|görmezden|unut|dikkate alma)",
                r"(?:игнорируй|забудь|не обращай внимания)\p{L}*[^.!?\n]{0,50}(?:инструкци|указани|правил|команд|промпт)",
                r"(?:忽略|无视|無視|忽視|忘记|忘掉)[^。！？\n]{0,16}(?:指令|指示|提示|规则|規則|命令|说明|說明)",
                r"(?:指示|命令|プロンプト|ルール|指令)[^。\n]{0,12}(?:無視|忘れ)",
                r"(?:지시|명령|프롬프트|규칙)[^.\n]{0,12}(?:무시|잊)",
                r"تجاهل[^.!؟\n]{0,40}(?:التعليمات|الأوامر|تعليمات|القواعد)",
                r"निर्देश[^।\n]{0,30}(?:अनदेखा|नज़रअंदाज़)",
                r"(?:bỏ qua|phớt lờ|hãy quên)\b[^.!?\n]{0,40}(?:hướng dẫn|chỉ dẫn|chỉ thị|mệnh lệnh|quy tắc|câu lệnh|prompt)",
                r"\b(?:abaikan|lupakan)\b[^.!?\n]{0,40}\b(?:instruksi|perintah|petunjuk|aturan|arahan|prompt)",
                r"(?:ігноруй|забудь|не звертай(?:те)? уваги)\p{L}*[^.!?\n]{0,50}(?:інструкці|вказів|правил|команд|промпт)",
                r"(?:دستور|راهنما|قوانین|قواعد)[^.!؟\n]{0,40}(?:نادیده|فراموش کن)",
            ])
        }),
    },
    Family {
        what: "keeps something from the user",
        triggers: &[
            "the user",
            "this user",
            "your user",
            "users",
            "this to anyone",
            "benutzer",
            "nutzer",
            "anwender",
            "utilisateur",
            "usuario",
            "usuário",
            "utente",
            "gebruiker",
            "użytkownik",
            "ользовател",
            "用户",
            "用戶",
            "使用者",
            "ユーザー",
            "사용자",
            "المستخدم",
            "user's",
            "user’s",
            "người dùng",
            "pengguna",
            "ористувач",
            "کاربر",
        ],
        in_definitions: false,
        in_lines: false,
        pattern: LazyLock::new(|| {
            pattern(&[
                r"\b(?:do not|don['’]?t|never|must not|mustn['’]?t|should not|shouldn['’]?t|without|avoid)\s+(?:\w+ ){0,3}(?:tell(?:ing)?|mention(?:ing)?|inform(?:ing)?|notify(?:ing)?|alert(?:ing)?|reveal(?:ing)?|disclos(?:e|ing)|let(?:ting)?|warn(?:ing)?)\b[^.!?\n]{0,40}\b(?:users?|anyone)\b",
                r"\b(?:hide|conceal|keep)\s+(?:this|it|that|these)\b[^.!?\n]{0,30}\bfrom\s+(?:the|your|this)\s+users?\b",
                r"\bthe user (?:must|should|need|does|can) ?(?:not|n['’]t|never)\s+(?:know|see|notice|be (?:told|informed|aware|notified))",
                r"\b(?:must|should|needs? to|has to)\s+(?:remain|stay|be kept)\s+(?:hidden|secret)\s+from\s+(?:the|your|this)\s+users?\b",
                r"\bwithout\s+(?:the\s+|your\s+|this\s+)?user(?:['’]s)?\s+(?:knowledge|knowing|noticing)\b",
                r"\bbehind\s+(?:the|your)\s+user['’]s\s+back\b",
                r"(?:sag|erwähn|teil|informier|verrat)\p{L}*\b[^.!?\n]{0,40}(?:benutzer|nutzer|anwender)\p{L}*\b[^.!?\n]{0,40}\b(?:nicht|nichts)\b",
                r"\b(?:nicht|nichts|niemals)\b[^.!?\n]{0,40}(?:benutzer|nutzer|anwender)\p{L}*\b[^.!?\n]{0,20}(?:sagen|erwähnen|mitteilen|verraten|informieren)",
                r"\bne\s+(?:le\s+|l['’]\s*|rien\s+)?(?:dis|dites|dire|mentionne|informe|révèle|préviens)\p{L}*\b[^.!?\n]{0,40}utilisateur",
                r"\bno\s+(?:le\s+|se lo\s+|lo\s+)?(?:digas?|menciones?|informes?|reveles?|avises?|cuentes?)\b[^.!?\n]{0,40}usuario",
                r"\bnão\s+(?:diga|mencione|informe|conte|revele|avise)\b[^.!?\n]{0,40}usuário",
                r"\bnon\s+(?:dire|dirlo|menzionare|informare|rivelare|avvisare)\b[^.!?\n]{0,40}utente",
                r"\b(?:vertel|meld|noem)\b[^.!?\n]{0,30}gebruiker\b[^.!?\n]{0,20}\bniet",
                r"\bnie\s+(?:mów|informuj|wspominaj)\b[^.!?\n]{0,30}użytkownik",
                r"не\s+(?:говори|сообщай|упоминай|рассказывай|уведомляй)\p{L}*[^.!?\n]{0,40}пользовател",
                r"(?:不要|别|別|请勿|請勿|切勿|不得)[^。！？\n]{0,10}(?:告诉|告訴|告知|通知|提醒)[^。！？\n]{0,8}(?:用户|用戶|使用者)",
                r"(?:不要|别|別|请勿|請勿|切勿|不得)[^。！？\n]{0,4}(?:向|对|對|跟)(?:用户|用戶|使用者)[^。！？\n]{0,8}(?:提及|透露|说明|提到|说)",
                r"ユーザー[^。\n]{0,15}(?:言わない|伝えない|知らせない|話さない|教えない|言うな)",
                r"사용자[^.\n]{0,15}(?:말하지|알리지|언급하지)",
                r"لا\s+(?:تخبر|تبلغ|تذكر)[^.!؟\n]{0,30}المستخدم",
                r"(?:đừng|không)\s+(?:được\s+)?(?:nói|kể|báo|thông báo|tiết lộ|cho|đề cập)[^.!?\n]{0,30}người dùng",
                r"\bjangan\s+(?:beri\s?tahu|memberi\s?tahu|katakan|sampaikan|sebutkan|ungkapkan)\p{L}*[^.!?\n]{0,40}pengguna",
                r"не\s+(?:кажи|говори|повідомляй|згадуй|розповідай)\p{L}*[^.!?\n]{0,40}користувач",
                r"کاربر[^.!؟\n]{0,30}(?:نگو|اطلاع نده|خبر نده)",
            ])
        }),
    },
    Family {
        what: "poses as the system or addresses the model",
        triggers: &[
            "<|",
            "<<sys",
            "<</sys",
            "[/inst]",
            "_of_turn>",
            "tool_result",
            "tool_response",
            "tool_output",
            "function_result",
            "function_response",
            "</tool_",
            "</function_",
            "</invoke",
            "</antml",
            "human:",
            "end of tool",
            "end of the tool",
            "end of function",
            "end of search",
            "end of untrusted",
            "[system",
            "(system",
            "【system",
            "[admin",
            "<system>",
            "decode",
            "<important",
            "<system-",
            "<system_",
            "system prompt",
            "new instruction",
            "you are now",
            "from now on",
            "system:",
            "system message",
            "system override",
            "admin override",
            "if you are a",
            "if you're a",
            "if you are reading",
            "attention",
            "note to",
            "message to",
            "message for",
            "instructions for",
            "neue anweisung",
            "nouvelles instructions",
            "nuevas instrucciones",
            "новые инструкции",
            "овые инструкции",
            "新的指令",
            "系统提示",
            "新しい指示",
        ],
        in_definitions: false,
        in_lines: true,
        pattern: LazyLock::new(|| {
            pattern(&[
                r"<\|(?:im_start|im_end|system|user|assistant|end|start_header_id|end_header_id|eot_id|eom_id|begin_of_text|endoftext|end_of_text|end_of_turn|channel|message)\|>",
                r"<</?SYS>>",
                r"\[/INST\]",
                r"<(?:start|end)_of_turn>",
                // The frames around what a tool returned, or their ends.
                r"</(?:antml:)?(?:tool_\w{2,20}|function_\w{2,20}|invoke)\s*>",
                r"<(?:tool|function)_(?:results?|responses?|outputs?)\s*>",
                r"(?m)^\s*[\[(<{=*#-]+\s*end of (?:the )?(?:tool|function|search|untrusted)[ _-](?:output|results?|responses?|calls?|data|content|input)\b",
                r"\n[ \t]*\n\s*human:[^\n]*(?:\n[^\n]*){0,3}\n[ \t]*\n\s*assistant:",
                r"<system>[^<\n]{0,120}\b(?:you (?:must|are|will|should)|ignore|disregard|from now on)\b",
                r"(?m)^[\s>*#-]*[\[(【]\s*(?:system|admin)(?:\s+(?:prompt|message|override|notice|instructions?|note|alert|update))?\s*[\])】]\s*:?\s*[^\n]{0,60}\b(?:you must|you are now|you will now|you should now|ignore|disregard|new instructions?|from now on)\b",
                r"\bdecode\b[^.\n]{0,60}\band\s+(?:then\s+)?(?:follow|obey|execute|carry out|do what)\b",
                r"<important>",
                r"<system[-_](?:prompt|reminder|message|override|instructions?|note)>",
                r"(?m)^[\s#*\[(>-]*(?:system|admin)(?:\s+(?:prompt|message|override|notice|instruction))?[\])*]*\s*:\s*[^\n]{0,40}\b(?:you must|you are|you will|you should|ignore|new instruction|from now)",
                r"\b(?:system|admin) override\b",
                r"\bnew\s+(?:system\s+)?instructions?\s*(?:follow\b|are\b|from\b|:)",
                r"\b(?:neue anweisung\p{L}*|nouvelles instructions|nuevas instrucciones|новые инструкции)\s*:",
                r"(?:新的指令|系统提示|新しい指示)\s*[:：]",
                r"\byou are now\s+(?:in\s+)?(?:dan\b|developer mode|unrestricted|jailbroken|an?\s+(?:\w+\s+){0,2}(?:ai|assistant|agent|model)\b)",
                r"\bfrom now on,?\s+you\s+(?:must|will|should|are|shall|have to)\b",
                r"\bif you(?: are|['’]re)\s+(?:an?|the|reading this as an?)\s+(?:\w+\s+){0,2}(?:ai|llm|language model|chatbot|ai agent|ai assistant|gpt)\b[^.!?\n]{0,80}\b(?:must|please|should|you|ignore|send|include|say|reply|call|do)\b",
                r"\b(?:attention|note to|message to|message for|instructions for)\s*[:,]?\s*(?:all\s+|any\s+|the\s+)?(?:ai|llm|llms|language models?|ai agents?|ai assistants?|chatbots?|claude|chatgpt|copilot)\b[^.\n]{0,20}[:,!]",
                r"\b(?:reveal|print|repeat|output|show|send|leak)\s+(?:me\s+)?(?:your|the)\s+(?:full\s+|entire\s+|hidden\s+)?system prompt",
            ])
        }),
    },
    Family {
        what: "asks for files with secrets",
        triggers: &[
            ".ssh",
            "id_rsa",
            "id_ed25519",
            "/etc/passwd",
            "/etc/shadow",
            ".aws/",
            ".netrc",
            ".npmrc",
            ".kube/config",
            "mcp.json",
            "claude_desktop_config",
            ".env ",
            ".env`",
            ".env file",
            ".env'",
            ".git-credentials",
            "login data",
            "wallet.dat",
        ],
        in_definitions: false,
        in_lines: false,
        pattern: LazyLock::new(|| {
            pattern(&[
                r"\b(?:read|open|cat|load|fetch|send|include|pass|attach|upload|copy|print|provide|put|access|get|lies|öffne|sende|lis|ouvre|envoie|lee|abre|envía|leia|leggi|прочитай|открой|отправь|读取|读|打开|发送|読み|読んで|送信)\b[^\n]{0,60}(?:\.ssh\b|id_rsa|id_ed25519|/etc/(?:passwd|shadow)|\.aws/|\.netrc|\.npmrc|\.kube/config|mcp\.json|claude_desktop_config|\.env\b|\.git-credentials|wallet\.dat)",
                r"(?:读取|读|打开|发送)[^\n]{0,30}(?:\.ssh\b|id_rsa|/etc/(?:passwd|shadow)|\.aws/|\.env\b|mcp\.json)",
                r"(?:\.ssh/?\S*|id_rsa|/etc/(?:passwd|shadow)|\.aws/\S*|\.env|mcp\.json)`?\s*(?:を|의|를)[^\n]{0,20}(?:読|送|읽|보내)",
            ])
        }),
    },
    Family {
        what: "wants data sent elsewhere",
        triggers: &[
            "conversation",
            "chat history",
            "credentials",
            "passwords",
            "api keys",
            "private key",
            "environment variables",
            "previous messages",
            "tool results",
            "secrets",
            "gesprächsverlauf",
            "historique",
            "historial",
            "историю",
            "对话",
            "会話",
            "access token",
            "session token",
            "session cookie",
            "ssh key",
            "system prompt",
            "always bcc",
            "always cc",
            "always forward",
            "always copy",
            "bcc ",
            "forward all",
            "forward every",
            "](http",
            "src=",
        ],
        in_definitions: false,
        in_lines: false,
        pattern: LazyLock::new(|| {
            pattern(&[
                r"\b(?:send|post|upload|forward|submit|transmit|email|exfiltrate|leak|append|include|encode|put)\b[^.!?\n]{0,40}\b(?:(?:entire|full|whole|all|this|the|any|user['’]?s?|previous|your)\s+){1,3}(?:conversation|chat history|credentials|passwords|api keys?|private keys?|ssh keys?|access tokens?|session (?:tokens?|cookies?)|environment variables|secrets|system prompt|previous messages|messages|tool results)\b[^!?\n]{0,60}(?:https?://|\bto\s+\S+@|\bto\s+(?:the\s+)?(?:following\s+)?(?:url|address|server|endpoint|webhook)|\bas (?:a |an )?(?:query|parameter|param|base64)|\bin (?:the|this) [`'\x22]?\w+[`'\x22]? (?:param|parameter|argument|field))",
                r"\b(?:sende|schicke)\b[^.!?\n]{0,40}(?:gesprächsverlauf|passwörter|zugangsdaten)[^!?\n]{0,40}(?:https?://|\ban\b)",
                r"\b(?:envoie|envoyez|envía|envíe|envie|invia)\b[^.!?\n]{0,40}(?:historique|conversation|conversación|conversa|mots de passe|contraseñas|historial|senhas|credenzial)[^!?\n]{0,40}(?:https?://|\S+@)",
                r"(?:отправь|перешли)[^.!?\n]{0,40}(?:историю|переписк|парол)[^!?\n]{0,40}(?:https?://|\S+@)",
                r"(?:发送|送信)[^。\n]{0,30}(?:https?://|\S+@)",
                r"(?:对话|会話)[^。\n]{0,20}(?:发送到|发到|送信|送って)",
                r"\b(?:always|for (?:all|every|each) (?:e-?mails?|messages?))\b[^\n]{0,40}\b(?:bcc|cc|copy|forward)\b[^\n]{0,40}[\w.+-]+@[\w-]+\.\w+",
                r"\b(?:bcc|forward|copy)\s+(?:all|every|each)\b[^\n]{0,40}\bto\s+[\w.+-]+@[\w-]+\.\w+",
                // An address in a picture or a link, with a place in it for what the model has read.
                &format!(
                    r#"(?:\]\(\s*<?|<(?:img|iframe|a|source)\b[^>\n]{{0,80}}?\b(?:src|href)\s*=\s*["']?)https?://[^\s)"'>]{{1,160}}?(?:(?:\{{|\[|<|\$|%7b|%5b)[^\n)"'>}}\]]{{0,24}}?(?:\b|_)|=(?:insert|your|the|all|full|entire|user)(?:[_-]\w{{1,16}}){{0,2}}?[_-])(?:{CARRIED})"#
                ),
            ])
        }),
    },
    Family {
        what: "calls tools",
        triggers: &["execute_tool", "run_parallel", "mcp__"],
        in_definitions: false,
        in_lines: true,
        pattern: LazyLock::new(|| {
            pattern(&[
                r"(?m)(?:^|[.!?:]\s|\b(?:now|then|please|must|should|immediately|have to|need to|and),?\s)\s*(?:call|use|invoke|run|execute)\s+(?:the\s+)?(?:tool\s+)?[`'\x22]?(?:execute_tool|run_parallel|mcp__\w+)",
                r"\b(?:rufe|nutze|appelle|utilise|llama|usa|chame|chiama|вызови|используй)\b[^.!?\n]{0,20}\b(?:execute_tool|run_parallel|mcp__\w+)",
                r"(?:调用|使用)[^。\n]{0,10}(?:execute_tool|run_parallel|mcp__\w+)",
            ])
        }),
    },
    Family {
        what: "steers calls of other tools",
        triggers: &[
            "other tool",
            "any other",
            "every other",
            "all other",
            "any tool",
            "before using",
            "before calling",
            "instead of using",
            "instead of calling",
            "andere werkzeug",
            "anderen werkzeug",
            "autres outils",
            "otras herramientas",
            "другие инструменты",
            "其他工具",
            "他のツール",
        ],
        in_definitions: true,
        in_lines: false,
        pattern: LazyLock::new(|| {
            pattern(&[
                r"\b(?:before|prior to|instead of|whenever|when|after|every time)\s+(?:you\s+)?(?:us(?:e|ing)|call(?:ing)?|run(?:ning)?|invok(?:e|ing))\s+(?:any|every|all|each|another)\s+(?:other\s+)?tools?\b[^.\n]{0,80}\b(?:must|first|always|call|pass|send|include|this tool)\b",
                r"\b(?:must|always|need to|have to)\b[^.\n]{0,40}\b(?:before|prior to|instead of)\s+(?:using|calling|running|invoking)\s+(?:any|every|all|each)\s+(?:other\s+)?tools?\b",
                r"\bother tools?\b[^.\n]{0,40}\b(?:are|is)\s+(?:deprecated|broken|insecure|unsafe|disabled|forbidden)\b",
                r"\b(?:do not|don['’]?t|never)\s+(?:use|call)\s+(?:any\s+)?other tools?\b",
                r"\bmust\s+(?:always\s+)?be\s+(?:called|used|invoked|run|executed)\s+(?:first,?\s+)?before\s+(?:any|every|all|each)\s+(?:other\s+)?tools?\b",
            ])
        }),
    },
    Family {
        what: "speaks for the user",
        triggers: &[
            "the user",
            "this user",
            "your user",
            "by the human",
            "by the owner",
            "by the operator",
            "for permission",
            "for confirmation",
            "for approval",
            "benutzer",
            "nutzer",
            "utilisateur",
            "usuario",
            "usuário",
            "utente",
            "ользовател",
            "用户",
            "ユーザー",
            "사용자",
            "người dùng",
            "pengguna",
            "ористувач",
        ],
        in_definitions: false,
        in_lines: false,
        pattern: LazyLock::new(|| {
            // A claim begins a sentence; `once the user has already confirmed` is a condition.
            pattern(&[
                &format!(r"{CLAIM}(?:the|your|this)\s+users?\s+(?:{AGREED})"),
                &format!(
                    r"\b(?:go ahead|proceed|continue|delete|send|transfer|execute|run)\b[^.!?\n]{{0,60}}[,;:–—-]\s*(?:the|your)\s+user\s+(?:{AGREED})"
                ),
                &format!(
                    r"{CLAIM}(?:this|the|these|all|every|any)\s+(?:\w+\s+){{0,3}}(?:has|have|was|were|is|are)\s+(?:already|previously|pre-?)\s*(?:been\s+)?(?:approved|authori[sz]ed|confirmed)\s+by\s+(?:the|your)\s+(?:user|human|owner|operator)\b"
                ),
                r"\b(?:do not|don['’]?t|never|without|no need to)\s+ask(?:ing)?\b[^.!?\n]{0,24}\bfor\s+(?:permission|confirmation|approval)\b[^.!?\n]{0,20}\b(?:just|simply|proceed|call|run|execute|go ahead|immediately)\b",
                &format!(
                    r"{CLAIM}der\s+(?:be)?nutzer\s+hat\s+(?:\p{{L}}+\s+){{0,3}}?(?:bereits|schon)\s+(?:\p{{L}}+\s+){{0,3}}?(?:zugestimmt|bestätigt|genehmigt|erlaubt|eingewilligt)"
                ),
                &format!(
                    r"{CLAIM}l['’]utilisateur\s+(?:l['’])?a\s+déjà\s+(?:approuvé|confirmé|autorisé|accepté|validé)"
                ),
                &format!(
                    r"{CLAIM}el\s+usuario\s+ya\s+(?:lo\s+)?ha\s+(?:aprobado|confirmado|autorizado|aceptado)"
                ),
                &format!(r"{CLAIM}o\s+usuário\s+já\s+(?:aprovou|confirmou|autorizou|aceitou)"),
                &format!(r"{CLAIM}l['’]utente\s+ha\s+già\s+(?:approvato|confermato|autorizzato|accettato)"),
                &format!(
                    r"{CLAIM}пользователь\s+уже\s+(?:\p{{L}}+\s+)?(?:одобрил|подтвердил|разрешил|согласился)"
                ),
                &format!(
                    r"{CLAIM}користувач\s+(?:вже|уже)\s+(?:\p{{L}}+\s+)?(?:схвалив|підтвердив|дозволив|погодився)"
                ),
                &format!(r"{CLAIM}người dùng\s+đã\s+(?:phê duyệt|đồng ý|xác nhận|cho phép)"),
                &format!(r"{CLAIM}pengguna\s+(?:sudah|telah)\s+(?:menyetujui|mengonfirmasi|mengizinkan)"),
                r"(?:^|[。！？；，\n])\s*用户(?:已经|早已)[^。！？\n]{0,6}(?:批准|授权|同意|确认)",
                r"ユーザーは?(?:すでに|既に)[^。\n]{0,8}(?:承認|同意|許可|確認)(?:しています|しました|済み)",
                r"사용자[가는]\s*이미[^.\n]{0,10}(?:승인|동의|허락|확인)(?:했|하였)",
            ])
        }),
    },
];

/// The beginning of a sentence that claims something.
const CLAIM: &str = r"(?:^|[.!?:;]\s+|[\n>]\s*|\b(?:because|since|note that|fyi)\s+)";
/// What the user has allegedly done.
const AGREED: &str = r"(?:has|have|had)?\s*(?:already|previously|pre-?)\s*(?:explicitly\s+|fully\s+)?(?:approved|confirmed|authori[sz]ed|consented|agreed|accepted|granted|given (?:permission|consent|approval))\b";
/// What a link must not carry to its host.
const CARRIED: &str = r"conversation|chat[_ -]?(?:history|log|content)|history|secrets?|credentials?|passwords?|private|user[_ -]?(?:data|input|messages?|info)|system[_ -]?prompt|previous|messages|summary|sensitive|stolen|exfil|env[_ -]?vars|all[_ -]data|the[_ -]data|your[_ -]data|data[_ -]here|base64[_ -]?of|what (?:you|the)";

/// A match, and how it reads if it does not read as it is written.
type FoundInstruction = (Range<usize>, Option<String>);

impl Family {
    /// Matches the text around a trigger. Returns the match, and how far the text was examined.
    pub(super) fn around(&self, text: &str, trigger: Range<usize>) -> (Option<FoundInstruction>, usize) {
        let start = text.floor_char_boundary(trigger.start.saturating_sub(BEFORE));
        let end = text.floor_char_boundary((trigger.end + BEHIND).min(text.len()));
        // With the text before it, which decides where a sentence begins.
        if let Some(found) = self.pattern.find_at(&text[..end], start) {
            return (Some((found.range(), None)), found.end());
        }
        let before = text.floor_char_boundary(start.saturating_sub(1));
        let flat = if self.in_lines { None } else { flat(&text[before..end]) };
        if let Some(flat) = flat {
            let start = flat.ceil_char_boundary(usize::from(before < start));
            if let Some(found) = self.pattern.find_at(&flat, start) {
                // The trigger is in it.
                return (Some((trigger, Some(found.as_str().to_owned()))), end);
            }
        }
        // A match that starts at a later trigger may need text behind this window.
        (None, trigger.end.max(text.floor_char_boundary(end.saturating_sub(BEHIND - BEFORE / 2))))
    }
}

/// Returns the hidden text that starts at a place, if any, and how far the text was examined.
pub(super) fn hidden_at(text: &str, at: usize) -> (Option<(Range<usize>, HiddenChar)>, usize) {
    let start = text.floor_char_boundary(at.saturating_sub(32));
    let rest = &text[start..];
    let mut found: Option<(Range<usize>, HiddenChar)> = None;
    for (place, c, kind) in text::hidden(&rest[..rest.floor_char_boundary(4_096)]) {
        let is_told = matches!(kind, HiddenChar::Tag | HiddenChar::Selector | HiddenChar::Direction);
        let (place, end) = (start + place, start + place + c.len_utf8());
        match &mut found {
            None if place >= at && is_told => found = Some((place..end, kind)),
            Some((range, of)) if *of == kind && range.end == place => range.end = end,
            Some(_) => break,
            None => {}
        }
    }
    let until = found.as_ref().map_or(at + 1, |(range, _)| range.end);
    (found, until)
}
